#include "memserver/jobs/job.h"

#include <algorithm>
#include <utility>

#include "base/hot.h"
#include "memserver/keeper/keeper_messages.h"

namespace tidepool::memserver {
Job::Job(JobId job_id, std::unique_ptr<JobStates> job_states, HostPool* pool, StateTier* tier)
    : id(job_id),
      states(std::move(job_states)),
      intake(states.get(), job_id, pool),
      step(states->spec().world),
      numbers(&states->spec()),
      spills(states.get(), job_id, tier),
      gpus(states.get(), job_id),
      updates(states.get(), job_id, pool, &spills, &gpus),
      fill(states.get(), job_id, tier),
      narrows(static_cast<uint32_t>(states->shards())),
      slots(states->spec().world, nullptr) {}

void Job::SetQuota(std::string account_name, const Quota& new_quota) {
  account = std::move(account_name);
  quota = new_quota;
  const auto set = [this](Share* share) {
    share->weight = quota.weight;
    share->priority = quota.priority;
  };
  for (Share* share : {&worker_share, &copy_share, &drive_share, &gpu_share}) set(share);
  for (auto& root : root_shares) {
    for (Share& share : root) set(&share);
  }
}

Share& Job::RootShare(size_t root, LaneWay way) {
  while (root_shares.size() <= root) {
    const Share fresh{.weight = quota.weight, .priority = quota.priority};
    root_shares.push_back({fresh, fresh});
  }
  return root_shares[root][static_cast<size_t>(way)];
}

TP_HOT bool Job::HasSlots() const {
  return std::any_of(slots.begin(), slots.end(),
                     [](const SessionSlot* slot) { return slot != nullptr; });
}

bool Job::HasGpuCopies() const {
  const auto copies = [](const SessionSlot* slot) {
    return slot != nullptr && slot->session != nullptr && slot->session->is_brought() &&
           slot->session->MustDrain();
  };
  return gpus.moving() || std::any_of(slots.begin(), slots.end(), copies);
}

TP_HOT bool Job::HasRanks() const {
  for (Rank rank = 0; rank < slots.size(); ++rank) {
    if (slots[rank] != nullptr || IsAwaited(rank)) return true;
  }
  return false;
}

bool Job::AtRest() const {
  return IsRecorded() && states->weights_ready() && !HasRanks() && !updates.active() &&
         work_at_team == 0 && !IsMoving() && waiting_saves.empty() && running_saves.empty();
}

Rank Job::FirstMissing() const {
  for (Rank rank = 0; rank < slots.size(); ++rank) {
    if (slots[rank] == nullptr && !IsAwaited(rank)) return rank;
  }
  return 0;
}

bool Job::AllLeftWell() const {
  const uint64_t all =
      spec().world == shm::kRanksMax ? ~uint64_t{0} : (uint64_t{1} << spec().world) - 1;
  return states->record().ranks_left_well.load(std::memory_order_relaxed) == all;
}

TP_HOT RunState Job::run() const {
  return IsRecorded() ? static_cast<RunState>(states->record().run.load(std::memory_order_relaxed))
                      : RunState::kWhole;
}

void Job::SetRun(RunState state) {
  if (IsRecorded())
    states->record().run.store(static_cast<uint32_t>(state), std::memory_order_release);
}

uint64_t Job::NonceOf(Rank rank) const {
  return states->record().ranks[rank].nonce.load(std::memory_order_relaxed);
}

void CountLoadedShard(Job* job, ChunkId id) {
  Chunk& chunk = job->states->chunk(id);
  if (++chunk.shards_loaded < chunk.shards) return;
  if (chunk.spilled) return job->spills.Store(id);
  if (chunk.on_gpu) return job->gpus.Store(id);
  job->states->table().MarkLoaded(&chunk);
  job->NoteProgress(JobProgress::kWeightsLoaded);
}

void GiveShareSlots(std::span<Job* const> jobs) {
  uint64_t used = 0;
  const auto bit = [](uint32_t slot) { return uint64_t{1} << (slot - kStateSlotsFirst); };
  for (const Job* job : jobs) {
    for (const GpuShare& share : job->gpus.shares()) used |= share.slot == 0 ? 0 : bit(share.slot);
  }

  for (Job* job : jobs) {
    for (Rank rank = 0; rank < job->gpus.shares().size() && rank < job->spec().states_on_gpu;
         ++rank) {
      GpuShare& share = job->gpus.shares()[rank];
      if (share.slot != 0) continue;
      for (share.slot = kStateSlotsFirst; (used & bit(share.slot)) != 0;) ++share.slot;
      used |= bit(share.slot);
    }
  }
}

void AbandonOpenStep(Job* job) {
  for (SessionSlot* slot : job->slots) {
    if (slot == nullptr || slot->session == nullptr) continue;
    for (const shm::Request& request : job->numbers.waiting(slot->rank))
      Answer(slot, Failure(request, ErrorId::kPeerLost));
    if (!job->step.HasEnded(slot->rank)) continue;
    Answer(slot, Failure(shm::AsRequest(job->step.end(slot->rank)), ErrorId::kPeerLost));
  }

  job->step.Clear();
  job->numbers.Clear();
  job->intake.Drop();
  job->open_traffic = {};
  job->NoteProgress(JobProgress::kStepAbandoned);
}

}  // namespace tidepool::memserver
