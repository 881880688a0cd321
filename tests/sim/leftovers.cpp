#include "tests/sim/leftovers.h"

#include <algorithm>

#include "base/check.h"

namespace tidepool::memserver {
namespace {

uint64_t SessionsMask(const Job& job) {
  uint64_t mask = 0;
  for (const SessionSlot* slot : job.slots)
    mask |= slot != nullptr && slot->session != nullptr ? uint64_t{1} << slot->rank : 0;
  return mask;
}

// Fetches of the job's sessions that are under way, by chunk.
const std::vector<uint32_t>& FetchesOf(const Job& job) {
  static std::vector<uint32_t> fetches;  // every turn: allocated once
  fetches.assign(job.states->chunks().size(), 0);
  for (const SessionSlot* slot : job.slots) {
    if (slot == nullptr || slot->session == nullptr) continue;
    const CopyLane& lane = slot->session->lane();
    for (uint32_t i = 0; i < lane.size(); ++i) {
      const shm::Request& request = lane.at(i).request;
      if (request.op == static_cast<uint32_t>(shm::Op::kFetch) && request.chunk < fetches.size())
        ++fetches[request.chunk];
    }
  }
  return fetches;
}

}  // namespace

void Leftovers::BeginServer(const ServeWorld& world) {
  slots_.clear();
  dead_slots_.clear();
  unused_jobs_.clear();
  awaited_.clear();
  for (const Job* job : world.tables().AllJobs()) {
    for (Rank rank = 0; rank < job->spec().world; ++rank) {
      if (job->IsAwaited(rank)) awaited_.emplace(job->id, rank, job->NonceOf(rank));
    }
  }
}

void Leftovers::CheckTurn(ServeWorld* world, const Outside& outside) {
  ++turn_;
  const Tables& tables = world->tables();
  CheckSlots(tables, outside);
  size_t saves = 0, slots = 0;
  for (const auto& job : tables.jobs) {
    CheckJob(*job, *world);
    slots += job->slots.size() -
             static_cast<size_t>(std::count(job->slots.begin(), job->slots.end(), nullptr));
    if (!tables.handing_over) CheckOwner(*job, world, outside.lease_ns);
    saves += job->running_saves.size();
  }
  TP_CHECK(slots == tables.slots.size(), "a job has no slot that the table has not");
  TP_CHECK(saves == outside.saves,
           "the saves that are said to run are those at the checkpoint thread");
  std::erase_if(unused_jobs_,
                [&tables](const auto& unused) { return tables.FindJob(unused.first) == nullptr; });
}

void Leftovers::CheckSlots(const Tables& tables, const Outside& outside) {
  uint32_t sessions = 0;
  for (const auto& slot : tables.slots) {
    sessions += slot->session != nullptr ? 1 : 0;
    TP_CHECK(slot->job->slots[slot->rank] == slot.get(), "a slot is its job's slot of that rank");
    if (outside.lives(slot->connection)) continue;
    const uint64_t since = dead_slots_.emplace(slot->connection, turn_).first->second;
    TP_CHECK(turn_ - since < kTurnsMax,
             "the slot of a dead rank is given back while the server serves on");
  }
  TP_CHECK(outside.device->open() == sessions, "every open stream belongs to a session");
  std::erase_if(dead_slots_,
                [&tables](const auto& dead) { return tables.FindSlot(dead.first) == nullptr; });
  const auto is_cleared = [&](ConnectionId slot) {
    return tables.FindSlot(slot) == nullptr && !outside.lives(slot);
  };
  const auto is_slot = [](ConnectionId before, const auto& slot) {
    return before == slot->connection;
  };
  if (std::equal(slots_.begin(), slots_.end(), tables.slots.begin(), tables.slots.end(), is_slot))
    return;
  cleared_ += static_cast<uint64_t>(std::count_if(slots_.begin(), slots_.end(), is_cleared));
  slots_.clear();
  for (const auto& slot : tables.slots) slots_.push_back(slot->connection);
}

void Leftovers::CheckJob(const Job& job, const ServeWorld& world) {
  const Tables& tables = world.tables();
  const Demotion& demotion = world.jobs().demotion();
  for (const WaitingSave& save : job.waiting_saves) {
    const SessionSlot* slot = tables.FindSlot(save.connection);
    TP_CHECK(slot != nullptr && slot->job == &job,
             "a save that waits has a rank that waits for it");
  }
  const uint64_t sessions = SessionsMask(job);
  const std::vector<uint32_t>& fetches = FetchesOf(job);
  for (ChunkId id = 0; id < fetches.size(); ++id) {
    const Chunk& chunk = job.states->chunk(id);
    const uint32_t moving = demotion.job() == job.id ? demotion.ReadersOf(id) : 0;
    TP_CHECK(chunk.readers == fetches[id] + moving,
             "a chunk's readers are the fetches under way, and the workers that move it");
    TP_CHECK((chunk.ranks_cached & ~sessions) == 0,
             "only the rCache of a rank that is here holds a chunk");
  }
  TP_CHECK(job.states->laid_out() || !job.IsRecorded(), "nobody meets a job that is half made");
  if (job.states->laid_out()) CheckReach(job);
  for (const FrozenUse& use : job.states->frozen()) {
    TP_CHECK((use.ranks_cached & ~sessions) == 0,
             "only the rCache of a rank that is here holds a frozen chunk");
  }
  CheckIdentities(job);
}

// What is counted as gradients come is what is there.
void Leftovers::CheckReach(const Job& job) {
  GradientIntake::Reach found;
  for (ChunkId id = 0; id < job.spec().chunks.size(); ++id) {
    for (Rank rank = 0; rank < job.spec().world; ++rank) {
      if (!job.spec().IsMember(id, rank)) continue;
      found.micro_batches =
          std::max(found.micro_batches, job.states->intake(id, rank).micro_batches_accepted);
    }
  }
  for (ChunkId id = 0; id < job.spec().chunks.size(); ++id) {
    uint64_t shards = 0;
    for (Rank rank = 0; rank < job.spec().world; ++rank) {
      const bool member = job.spec().IsMember(id, rank);
      shards += member && job.states->intake(id, rank).micro_batches_accepted == found.micro_batches
                    ? 1
                    : 0;
    }
    found.shards += shards;
    found.chunks += shards == job.spec().ShardCount(id) ? 1 : 0;
  }
  const GradientIntake::Reach counted = job.intake.reach();
  TP_CHECK(counted.micro_batches == found.micro_batches && counted.shards == found.shards &&
               counted.chunks == found.chunks,
           "how far the open step has come is counted right");
}

// What a former server knew goes when its rank comes back, or is told to be dead; what this one
// noted goes with the session.
void Leftovers::CheckIdentities(const Job& job) {
  if (!job.IsRecorded()) return;
  for (Rank rank = 0; rank < job.spec().world; ++rank) {
    if (awaited_.empty() && !job.IsAwaited(rank)) continue;
    const std::tuple identity{job.id, rank, job.NonceOf(rank)};
    if (job.slots[rank] != nullptr && job.slots[rank]->session != nullptr) awaited_.erase(identity);
    TP_CHECK(!job.IsAwaited(rank) || awaited_.contains(identity),
             "nobody waits for a rank that died while this server was there");
  }
}

// Whose the job's memory is.
void Leftovers::CheckOwner(const Job& job, ServeWorld* world, int64_t lease_ns) {
  if (job.phase == JobPhase::kOpen) {
    const bool leased =
        job.states->weights_ready() && world->clock().NowNs() - job.detached_ns < lease_ns;
    TP_CHECK(job.HasRanks() || leased, "an open job has ranks or a lease");
    return;
  }
  if (job.phase == JobPhase::kZeroing) {
    TP_CHECK(job.HasSlots(), "memory is zeroed for somebody");
    return;
  }
  const bool moves = world->jobs().demotion().job() == job.id;
  if (job.work_at_team > 0 || job.IsMoving() || !job.running_saves.empty() || moves) {
    unused_jobs_.erase(job.id);
    return;
  }
  const uint64_t since = unused_jobs_.emplace(job.id, turn_).first->second;
  TP_CHECK(turn_ - since < kTurnsMax,
           "the memory of a job without ranks goes back while the server serves on");
}

}  // namespace tidepool::memserver
