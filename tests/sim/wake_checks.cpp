#include "tests/sim/wake_checks.h"

#include <algorithm>

#include "base/check.h"

namespace tidepool::memserver {
namespace {

bool Is(const shm::Request& request, shm::Op op) {
  return request.op == static_cast<uint32_t>(op);
}

bool UploadsAnother(const JobStates& states, SessionId session, const FrozenChunk* chunk) {
  const auto& chunks = states.frozen_table()->chunks();
  return std::any_of(chunks.begin(), chunks.end(), [&](const auto& entry) {
    return entry.second.get() != chunk && !entry.second->sealed &&
           entry.second->uploader == session;
  });
}

// What FrozenTable would answer, without asking it: a question changes it.
bool FrozenCouldGoOn(const JobStates& states, SessionId session, const shm::Request& request) {
  const FrozenChunk& chunk = *states.frozen(request.chunk).chunk;
  if (chunk.sealed || !Is(request, shm::Op::kClaimFrozen)) return chunk.sealed;
  const bool is_free = chunk.uploader == 0 && chunk.copies == 0 && !chunk.at_worker;
  return chunk.rejected == session || (is_free && !UploadsAnother(states, session, &chunk));
}

// True when the request would be started, or answered, if it was looked at now.
bool CouldGoOn(const Job& job, const Session& session, const shm::Request& request) {
  const JobStates& states = *job.states;
  if (states.spec().IsFrozen(request.chunk)) return FrozenCouldGoOn(states, session.id(), request);
  const Chunk& chunk = states.chunk(request.chunk);
  if (Is(request, shm::Op::kSubmitGradient)) {
    // It may wait for staging or for workers besides, which are in flight then.
    return job.run_broken();
  }
  if (!Is(request, shm::Op::kFetch)) return false;  // puts wait for what is in flight
  const bool never_comes = request.version > states.sealed_version() || chunk.version == kNoVersion;
  if (job.run_broken() && never_comes) return true;
  return states.weights_ready() && chunk.version != kNoVersion &&
         chunk.version >= request.version && states.weights().HoldsWeights(request.chunk);
}

bool HasParked(const Job& job) {
  return std::any_of(job.slots.begin(), job.slots.end(), [](SessionSlot* slot) {
    return slot != nullptr && slot->session != nullptr && slot->session->waiting().size() > 0;
  });
}

bool IsInFlight(const Job& job) {
  const auto copies = [](const SessionSlot* slot) {
    return slot != nullptr && (slot->session == nullptr || slot->session->lane().size() > 0);
  };
  return job.work_at_team > 0 || job.IsMoving() || job.updates.active() || job.being_zeroed ||
         !job.running_saves.empty() || !job.waiting_saves.empty() ||
         std::any_of(job.slots.begin(), job.slots.end(), copies);
}

bool SomebodyOwes(const Job& job) {
  if (job.run_broken() || !job.states->weights_ready()) return true;
  for (Rank rank = 0; rank < job.spec().world; ++rank) {
    if (!job.step.HasEnded(rank)) return true;
  }
  return false;
}

}  // namespace

void WakeChecks::CheckParked(const Job& job, bool worked) {
  for (SessionSlot* slot : job.slots) {
    if (slot == nullptr || slot->session == nullptr || worked) continue;
    if (slot->session->seen_changes != job.Changes()) continue;  // it will be looked at
    slot->session->waiting().ForEachFirst([&](const shm::Request& request) {
      ++looked_at_;
      TP_CHECK(!CouldGoOn(job, *slot->session, request),
               "a parked request is looked at again when it may go on");
    });
  }
  if (!HasParked(job) || IsInFlight(job) || !job.spills.put_off().empty() || SomebodyOwes(job)) {
    idle_.erase(job.id);
    return;
  }
  TP_CHECK(++idle_[job.id] < kTurnsMax, "a parked request waits for something that will happen");
}

void WakeChecks::CheckWaiting(ServeWorld* world, bool worked) {
  const Tables& tables = world->tables();
  bool for_nothing = false;
  for (const WaitingRank& rank : world->jobs().waiting()) {
    const auto is_former_self = [&](const auto& job) {
      return job->phase == JobPhase::kRemoving && job->spec().name == rank.event.spec->name;
    };
    const bool leaves = std::any_of(tables.jobs.begin(), tables.jobs.end(), is_former_self);
    looked_at_ += worked ? 0 : 1;
    TP_CHECK(worked || !rank.comes_again || leaves,
             "a rank that waits for its former self is served when that one has gone");
    const bool moves = world->jobs().is_demoting();
    for_nothing |= !leaves && !moves && !(rank.event.may_wait && !tables.jobs.empty());
  }
  waiting_for_nothing_ = for_nothing ? waiting_for_nothing_ + 1 : 0;
  TP_CHECK(waiting_for_nothing_ < kTurnsMax, "a waiting rank waits for something that will happen");
}

void WakeChecks::CheckTurn(ServeWorld* world, bool worked, bool saves) {
  const Tables& tables = world->tables();
  // Nothing is begun any more: what waits goes on with the next server.
  if (tables.handing_over || tables.draining) return;
  const bool repeats = world->has_tier() && world->tier().next_retry_ns() != INT64_MAX;
  for (const auto& job : tables.jobs) {
    if (repeats || saves) idle_.erase(job->id);
    CheckParked(*job, worked);
  }
  CheckWaiting(world, worked);
  std::erase_if(idle_,
                [&tables](const auto& idle) { return tables.FindJob(idle.first) == nullptr; });
}

}  // namespace tidepool::memserver
