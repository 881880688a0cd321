#include "memserver/loop/off_host_mover.h"

#include <algorithm>

#include "base/buggify.h"
#include "base/check.h"
#include "base/hot.h"
#include "base/log.h"
#include "memserver/loop/updated_chunk.h"

namespace tidepool::memserver {

// An off-host chunk finished its update, or its initial store: its weights are loaded.
void OffHostMover::TakeFinished(Job* job, ChunkId chunk, bool updated) {
  if (updated) {
    job->updates.EndAway(chunk);
    return NoteUpdated(tables_, job, chunk);
  }
  job->states->weights().landing().Leave(chunk);
  job->states->table().MarkLoaded(&job->states->chunk(chunk));
  job->NoteProgress(JobProgress::kWeightsLoaded);
}

bool OffHostMover::TakeStoredAndUpdated(Job* job) {
  SpillQueue::Finished spilled;
  GpuQueue::Finished on_gpu;
  bool worked = false;
  for (; job->spills.TakeFinished(&spilled); worked = true)
    TakeFinished(job, spilled.chunk, spilled.updated);
  for (; job->gpus.TakeFinished(&on_gpu); worked = true)
    TakeFinished(job, on_gpu.chunk, on_gpu.updated);
  return worked;
}

// Notes the transfer if its job is recorded.
void OffHostMover::Record(const TierDone& done) const {
  const Job* const job = tables_->FindJob(done.job);
  if (job == nullptr || job->spans == nullptr) return;
  const StagedPiece& piece = neighbours_.tier->staging().at(done.staging);
  job->spans->Add({.kind = done.kind == nvme::IoKind::kWrite ? SpanKind::kWrite : SpanKind::kRead,
                   .by = done.directory,
                   .chunk = piece.chunk,
                   .piece = piece.piece,
                   .begin_ns = piece.transfer.begin_ns,
                   .end_ns = job->spans->NowNs()});
}

// Reports the end of a transfer to the owner of its piece.
void OffHostMover::EndTransfer(const TierDone& done) {
  switch (done.owner) {
    case PieceOwner::kScrub: return tables_->scrub.EndTransfer(done);
    case PieceOwner::kDemotion: return demotion_->EndTransfer(done, neighbours_.tier);
    case PieceOwner::kWeightFill: return JobOf(done.job).fill.EndTransfer(done);
    case PieceOwner::kSpillQueue: return JobOf(done.job).spills.EndTransfer(done);
    case PieceOwner::kNobody: break;
  }
  TP_CHECK(false, "the answer for a piece without an owner is not told");
}

Job& OffHostMover::JobOf(JobId id) const {
  Job* const job = tables_->FindJob(id);
  TP_CHECK(job != nullptr, "a job stays while its states move");
  return *job;
}

TP_HOT bool OffHostMover::PollTier() {
  if (neighbours_.tier == nullptr) return false;
  bool worked = neighbours_.tier->Progress();
  TierLate late;
  while (neighbours_.tier->NextLate(&late)) TakeLate(late);
  TierDone done;
  while (neighbours_.tier->Next(&done)) {
    worked = true;
    Record(done);
    EndTransfer(done);
  }

  worked |= PollScrub();
  for (const auto& job : tables_->jobs) {
    if (!job->states->spills()) continue;
    worked |= TakeStoredAndUpdated(job.get());
    if (MayMove(*job)) worked |= job->spills.BeginPutOff(neighbours_.clock->NowNs());
  }

  worked |= weights_.Poll();
  worked |= FillStaging();
  return ReadAhead() || worked;
}

// While a save holds its updates a job takes no staging, since others may need it.
bool OffHostMover::MayMove(const Job& job) const {
  return job.states->spills() && !job.suspended && job.phase == JobPhase::kOpen &&
         !tables_->handing_over && !job.updates.held();
}

// Jobs take staging slots in the order of their shares. While several want some, they have together
// as many as one alone would, so that there is something to share.
bool OffHostMover::FillStaging() {
  const auto pieces_in_staging = [this] {
    uint32_t all = 0;
    for (const auto& job : tables_->jobs)
      all += job->spills.pieces_in_staging() + job->fill.pieces_in_staging();
    return all;
  };
  uint32_t wanting = 0;
  for (const auto& job : tables_->jobs)
    wanting += (MayMove(*job) && job->spills.wants_to_move()) || job->fill.wants_to_move() ? 1 : 0;
  const uint32_t most = wanting > 1 ? SpillQueue::kStagedPiecesMax : StateTier::kStagingSlots;

  const auto share = [this](size_t i) -> Share& { return tables_->jobs[i]->drive_share; };
  const auto take = [this](size_t i) -> uint64_t {
    Job& job = *tables_->jobs[i];
    // Weights go first, because a rank waits for them; it waits for states only while the last step
    // is unfinished.
    const uint64_t bytes = tables_->handing_over ? 0 : job.fill.BeginNext();
    return bytes == 0 && MayMove(job) ? job.spills.BeginNext() : bytes;
  };
  bool begun = false;
  while (wanting > 0 && pieces_in_staging() < most && neighbours_.tier->staging_free() > 0 &&
         drives_.Serve(tables_->jobs.size(), share, take))
    begun = true;
  return begun;
}

// True if half of the gradients of an open step have arrived, so that its update is near, and the
// update before it is written.
bool OffHostMover::MayReadAhead(const Job& job) const {
  return MayMove(job) && !job.suspended && !job.updates.active() && job.states->weights_ready() &&
         job.intake.HalfScanned();
}

// Due work goes first: while a job lacks staging, no job keeps pieces there that were read ahead.
bool OffHostMover::ReadAhead() {
  const bool lacking =
      std::any_of(tables_->jobs.begin(), tables_->jobs.end(), [this](const auto& job) {
        return (MayMove(*job) && job->spills.lacks_staging()) || job->fill.lacks_staging();
      });

  bool worked = false;
  for (const auto& job : tables_->jobs) {
    if (!job->states->spills()) continue;
    if (lacking || !MayReadAhead(*job)) {
      worked |= job->updates.GiveBackAhead();  // another job may take it in the next turn
    } else if (!TP_BUGGIFY("step.read_ahead_not")) {
      worked |= job->updates.ReadAhead();
    }
  }
  return worked;
}

// Reports a late transfer to all who need to know; the owner of the piece gives up a lost one.
void OffHostMover::TakeLate(const TierLate& late) {
  LogLate(late);
  if (late.piece.owner == PieceOwner::kDemotion) return demotion_->TakeLate(late, neighbours_.tier);
  if (!late.lost) return;

  switch (late.piece.owner) {
    case PieceOwner::kScrub: {
      const Job* job = tables_->FindJob(late.piece.job);
      return tables_->scrub.GiveUp(neighbours_.tier, job != nullptr ? job->states.get() : nullptr);
    }
    case PieceOwner::kWeightFill: return JobOf(late.piece.job).fill.GiveUp(late);
    case PieceOwner::kSpillQueue: return JobOf(late.piece.job).spills.GiveUp(late);
    case PieceOwner::kDemotion:
    case PieceOwner::kNobody: break;  // of a directory's tables, or abandoned
  }
}

void OffHostMover::LogLate(const TierLate& late) const {
  const Job* job = late.of_tables ? nullptr : tables_->FindJob(late.piece.job);
  const char* const kind = late.of_tables ? "manifest" : late.is_write() ? "write" : "read";
  const char* const what = late.lost ? "a drive does not answer, and is not waited for any longer"
                                     : "a drive does not answer";

  LogError(what,
           {{"directory", neighbours_.tier->directory(late.directory).path},
            {"offset", late.offset},
            {"kind", kind},
            {"job", late.piece.job},
            {"name", job != nullptr ? job->spec().name : std::string()},
            {"chunk", late.piece.chunk},
            {"piece", late.piece.piece},
            {"seconds", static_cast<double>(late.waited_ns) / kNsPerSecond},
            {"fix",
             "look at the kernel log for this drive; what waits for it goes on when it answers"}});
}

bool OffHostMover::PollScrub() {
  const auto wanted = tables_->scrub.job();
  const Job* job = wanted && !tables_->handing_over ? tables_->FindJob(*wanted) : nullptr;
  const bool open = job != nullptr && job->phase == JobPhase::kOpen;
  return tables_->scrub.Progress(neighbours_.tier, open ? job->states.get() : nullptr,
                                 neighbours_.clock->NowNs());
}

TP_HOT bool OffHostMover::PollGpus() {
  bool worked = false, any = false;
  for (const auto& job : tables_->jobs) {
    if (!job->states->uses_gpus()) continue;
    any = true;
    job->gpus.Record(job->spans);
    worked |= job->gpus.Progress(kCopyBytesPerTurn);
    worked |= TakeStoredAndUpdated(job.get());
  }
  if (!any || tables_->handing_over) return worked;

  const auto share = [this](size_t i) -> Share& { return tables_->jobs[i]->gpu_share; };
  const auto take = [this](size_t i) -> uint64_t {
    Job& job = *tables_->jobs[i];
    const bool may = job.states->uses_gpus() && job.phase == JobPhase::kOpen && !job.suspended;
    return may ? job.updates.BeginOnGpu() : 0;
  };
  for (uint32_t left = kGpuUnitsPerTurn; left > 0 && gpus_.Serve(tables_->jobs.size(), share, take);
       --left)
    worked = true;
  return worked;
}

}  // namespace tidepool::memserver
