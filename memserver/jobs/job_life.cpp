#include "memserver/jobs/job_life.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/buggify.h"
#include "base/hot.h"
#include "base/log.h"
#include "base/planted.h"
#include "base/point.h"
#include "base/units.h"
#include "memserver/jobs/job_lease.h"
#include "memserver/jobs/limits.h"

namespace tidepool::memserver {
namespace {

// True when only the table still refers to the job.
bool IsUnused(const Job& job) {
  const bool at_work = job.work_at_team > 0 || job.IsMoving();
  return !job.HasSlots() && (!at_work || TP_PLANTED("jobs.removed_under_work")) &&
         job.running_saves.empty() && job.running_steps.empty();
}

}  // namespace

// One job's part of a budget that all jobs being made share in a turn.
uint64_t JobLife::PartOf(uint64_t all) const {
  const auto is_made = [](const auto& job) { return job->phase == JobPhase::kZeroing; };
  const auto& jobs = context_.tables->jobs;
  return all / static_cast<uint64_t>(std::count_if(jobs.begin(), jobs.end(), is_made)) + 1;
}

TP_HOT bool JobLife::Make(Job* job) {
  if (job->phase != JobPhase::kZeroing) return false;
  if (job->states->laid_out() || (job->zeroed && TP_PLANTED("jobs.opened_half_made")))
    return job->zeroed && Open(job);
  if (job->states->lists_frozen()) return List(job);
  const uint64_t rows = TP_BUGGIFY("desk.lay_out_slowly") ? 1 : PartOf(kTableRowsPerTurn);
  job->states->LayOutMore(TP_PLANTED("jobs.laid_out_in_one_turn") ? UINT32_MAX
                                                                  : static_cast<uint32_t>(rows));
  TP_POINT("server.job_laid_out");
  return true;
}

// Lists the frozen chunks in slices (there may be many). If one cannot be had, the job ends.
bool JobLife::List(Job* job) {
  if (!job->making_failure.ok()) return false;
  const uint64_t rows = TP_BUGGIFY("desk.list_slowly") ? 1 : PartOf(FrozenTable::kRowsPerTurn);
  job->making_failure = job->states->ListFrozen(static_cast<uint32_t>(rows));
  return true;
}

// Opens a job once its ranges on NVMe are durable. A later server finds nothing of it before its
// last record is written and the index names it.
bool JobLife::Open(Job* job) {
  if (job->states->spills() && !context_.neighbours.tier->IsDurable(*job->states)) return false;
  const uint64_t bytes_max = TP_BUGGIFY("desk.record_slowly") ? 256 : PartOf(kRecordBytesPerTurn);
  const bool whole = job->states->WriteRecords(
      {job->id, job->nonce, job->fingerprint, job->uid, job->note}, bytes_max);
  TP_POINT("server.records_begun");
  if (!whole) return true;

  TP_POINT("server.records_written");
  job->index_slot =
      context_.neighbours.index->Add(job->id, job->nonce, job->states->extents().front());
  job->phase = JobPhase::kOpen;
  TP_POINT("server.job_opened");
  return true;
}

void JobLife::SendFarewells(Job* job) {
  if (job->phase == JobPhase::kRemoving) return;
  for (const ConnectionId connection : job->farewells)
    context_.Send(SessionOver{connection, Status()});
  job->farewells.clear();
}

// A run that a rank has left can seal no further step.
void JobLife::BreakRun(Job* job, Rank rank, Leaving how) {
  JobRecord& record = job->states->record();
  if (how == Leaving::kGoodbye)
    record.ranks_left_well.fetch_or(uint64_t{1} << rank, std::memory_order_release);
  if (how != Leaving::kGoodbye || job->run() == RunState::kWhole)
    job->SetRun(how == Leaving::kGoodbye ? RunState::kLeft : RunState::kPeerLost);
  TP_POINT("server.run_broken");

  if (!TP_PLANTED("jobs.step_not_abandoned")) AbandonOpenStep(job);
  TP_POINT("server.step_abandoned");
  job->states->records().ClearRank(rank);
  TP_POINT("server.rank_cleared");
}

void JobLife::NoteRankLeft(Job* job, Rank rank, Leaving how) {
  context_.room_changes->Note(RoomChange::kRankLeft);
  if (job->IsRecorded() && job->states->weights_ready())
    context_.tables->lost.Forget(job->spec().name, job->uid);
  if (job->IsRecorded()) BreakRun(job, rank, how);
  // A server that ends tells each rank so, rather than that its peers were sent away before it.
  if (how != Leaving::kGoodbye && !context_.tables->draining) {
    for (const SessionSlot* other : job->slots) {
      if (other != nullptr) context_.Send(PeerGone{other->connection, rank});
    }
  }
  if (!job->HasRanks() && job->phase != JobPhase::kRemoving) KeepOrEnd(job);
}

// Called when the last rank has left.
void JobLife::KeepOrEnd(Job* job) {
  const bool all_said_goodbye = job->IsRecorded() && job->AllLeftWell();
  const bool worth_keeping = job->phase == JobPhase::kOpen && job->states->weights_ready() &&
                             context_.options.times.lease_ns > 0;
  if (all_said_goodbye || !worth_keeping || IsEnding()) {
    if (!all_said_goodbye && !IsEnding())
      NoteLost(*job, "its ranks ended without a goodbye, and --lease keeps no such job",
               &context_.tables->lost);
    BeginRemoval(job);
    return;
  }

  job->detached_ns = context_.neighbours.clock->NowNs();
  job->figures.Interrupt();
  context_.log->Tell(job->uid, LogLevel::kInfo, "job detached, kept for a restart",
                     {{"job", job->id}, {"version", job->states->sealed_version()}});
}

void JobLife::LoseAwaited(Job* job, Rank rank, const char* cause) {
  LogWarn("awaited rank lost", {{"job", job->id}, {"rank", rank}, {"cause", cause}});
  ++context_.tables->counters.sessions_ended_badly;
  NoteRankLeft(job, rank, Leaving::kLost);
}

TP_HOT bool JobLife::PollAwaited(Job* job) {
  const bool complete = std::none_of(job->slots.begin(), job->slots.end(),
                                     [](const SessionSlot* slot) { return slot == nullptr; });
  if (job->phase != JobPhase::kOpen || complete) return false;  // as in nearly all turns
  if (context_.neighbours.clock->NowNs() - job->awaiting_since_ns < AwaitNs(context_.options))
    return false;

  bool lost = false;
  for (Rank rank = 0; rank < job->slots.size() && job->phase == JobPhase::kOpen; ++rank) {
    if (!job->IsAwaited(rank)) continue;
    LoseAwaited(job, rank, "it did not come back in time");
    lost = true;
  }
  return lost;
}

void JobLife::BeginRemoval(Job* job) {
  // While a GPU copies for the job, the next server must not give its memory to others.
  const bool stays =
      job->IsRecorded() && job->HasGpuCopies() && !TP_PLANTED("jobs.index_left_under_copies");
  if (stays) job->SetRun(RunState::kOver);
  job->leaves_index |= stays;
  if (job->IsRecorded() && !stays && !TP_PLANTED("jobs.index_slot_left"))
    context_.neighbours.index->Remove(job->index_slot);
  TP_POINT("server.job_unrecorded");

  // Settings made for this job do not apply to the next job of this name.
  if (job->phase != JobPhase::kRemoving) context_.tables->quotas.ForgetJob(job->spec().name);
  job->phase = JobPhase::kRemoving;
  job->spills.Abandon();
  job->gpus.Abandon();
  job->fill.Abandon();
  for (const WaitingSave& save : job->waiting_saves) {
    if (save.of_no_rank)
      context_.Send(SaveDone{save.connection, Status(ErrorId::kSaveFailed, "the job has ended")});
  }
  job->waiting_saves.clear();
  // What was sealed is still copied, and the job's memory stays until then.
  for (const RunningSteps& steps : job->running_steps) steps.feed->Close();
}

TP_HOT bool JobLife::EraseIfUnused(Job* job) {
  // Nobody takes the room of jobs that end with the server.
  const bool at_work = demotions_->mover().job() == job->id || (job->being_zeroed && !IsEnding());
  if (job->phase != JobPhase::kRemoving || !IsUnused(*job) || at_work ||
      TP_BUGGIFY("desk.erase_later"))
    return false;
  if (std::exchange(job->leaves_index, false)) context_.neighbours.index->Remove(job->index_slot);
  if (!gpu_shares_->LetGo(job)) return false;
  context_.log->Tell(job->uid, LogLevel::kInfo, "job removed",
                     {{"job", job->id}, {"name", job->spec().name}});
  if (!TP_PLANTED("jobs.removal_not_noted")) context_.room_changes->Note(RoomChange::kJobRemoved);

  const std::vector<ConnectionId> farewells = std::move(job->farewells);
  TP_POINT("server.job_removing");
  if (job->states->spills()) context_.neighbours.tier->Remove(job->nonce);
  if (job->states->demoted() > 0) context_.neighbours.tier->Remove(DemotedKey(job->nonce));
  context_.Send(Discard{.tables = job->states->GiveUpTables()});
  std::erase_if(context_.tables->jobs, [job](const auto& other) { return other.get() == job; });
  TP_POINT("server.job_removed");
  for (const ConnectionId connection : farewells) context_.Send(SessionOver{connection, Status()});
  return true;
}

TP_HOT bool JobLife::EndLease(Job* job) {
  const std::optional<int64_t> lease_end = LeaseEndNs(*job, context_.options);
  if (!lease_end || context_.neighbours.clock->NowNs() < *lease_end ||
      TP_PLANTED("jobs.lease_never_ends"))
    return false;
  context_.log->Tell(job->uid, LogLevel::kInfo, "lease of a detached job ended",
                     {{"job", job->id}});
  NoteLost(*job, "it had no ranks for " + FormatNs(context_.options.times.lease_ns) + ", its lease",
           &context_.tables->lost);
  BeginRemoval(job);
  return true;
}

}  // namespace tidepool::memserver
