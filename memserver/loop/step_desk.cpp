#include "memserver/loop/step_desk.h"

#include <algorithm>
#include <utility>

#include "base/buggify.h"
#include "base/check.h"
#include "base/log.h"
#include "base/planted.h"
#include "base/point.h"
#include "memserver/update/seal.h"

namespace tidepool::memserver {

bool StepDesk::FinishSteps() {
  bool worked = false;
  for (const auto& job : tables_->jobs) {
    if (job->phase != JobPhase::kOpen) continue;
    worked |= job->updates.HandOut();
    if (job->updates.PublishSkipped(TP_BUGGIFY("step.publish_one") ? 1 : kSkippedChunksPerTurn) >
        0) {
      ++job->changes;
      worked = true;
    }
    if (TP_BUGGIFY("step.seal_later")) continue;
    // A save of the sealed version comes before the next seal, else it could never be done.
    if (!job->step.AllEnded() || !job->intake.AllScanned() || !job->waiting_saves.empty()) continue;
    // A seal does not pass over a fetch whose weights have only to be read.
    if (WeightDesk::IsAwaited(*job) && !TP_PLANTED("step.sealed_over_a_fetch")) continue;
    FinishStep(job.get());
    worked = true;
  }
  return worked;
}

void StepDesk::FinishStep(Job* job) {
  const bool finite = job->intake.all_finite();
  const StepRecord record = JudgeStep(*job->states, job->step.end(0), finite);
  if (!finite && job->spec().loss_scaling == 0) {
    LogWarn("a gradient is not finite; the step was not sealed",
            {{"job", job->id}, {"version", record.version - 1}});
    // Drops first: ranks that were answered begin the next attempt, also at another server.
    job->intake.Drop();
    TP_POINT("server.step_dropped");
    AnswerStep(job, record, ErrorId::kNonFinite);
    job->step.Clear();
    return;
  }
  SealStep(job->states.get(), record);
  AnswerStep(job, record, ErrorId::kNone);
  job->step.Clear();
  job->intake.BeginStep();
  job->updates.Begin(record);
  ++job->changes;
  job->steps_skipped += record.skipped;
  const int64_t now = parts_.clock->NowNs();
  if (job->last_seal_ns != 0)
    job->step_seconds = static_cast<double>(now - job->last_seal_ns) / kNsPerSecond;
  job->last_seal_ns = now;
  job->sealed_traffic = std::exchange(job->open_traffic, {});
}

void StepDesk::AnswerStep(Job* job, const StepRecord& record, ErrorId error) {
  for (Seat* seat : job->seats) {
    if (seat == nullptr || seat->session == nullptr) continue;
    shm::Completion completion = Failure(shm::AsRequest(job->step.end(seat->rank)), error);
    completion.version = error == ErrorId::kNone ? record.version : record.version - 1;
    completion.grad_norm = record.grad_norm;
    completion.skipped = error == ErrorId::kNone ? record.skipped : 0;
    Answer(seat, completion);
  }
  TP_POINT("server.step_answered");
}

bool StepDesk::TakeDone() {
  if (!parts_.team->TakeDone(&done_)) return false;
  for (const WorkDone& done : done_) EndWork(done);
  return true;
}

void StepDesk::EndWork(const WorkDone& done) {
  Job* job = tables_->FindJob(done.name.job);
  TP_CHECK(job != nullptr && job->work_at_team > 0, "a job stays while it has work at the team");
  --job->work_at_team;
  job->bytes_at_team -= done.bytes;
  if (done.name.kind != WorkKind::kVerify && done.name.kind != WorkKind::kMoveOut)
    HoldWorkersFor(*job);
  switch (done.name.kind) {
    case WorkKind::kHash: EndHash(*job, done); break;
    case WorkKind::kNarrow: CountLoadedShard(job, done.name.chunk); break;
    case WorkKind::kUpdate:
      if (job->updates.EndWork(done)) NoteUpdated(job, done.name.chunk);
      break;
    case WorkKind::kStage:
    case WorkKind::kUnstage: job->spills.EndWork(done); break;
    case WorkKind::kNarrowStored: job->gpus.EndWork(done); break;
    case WorkKind::kFillWindow:
      if (job->fill.EndWork(done)) ++job->changes;
      break;
    case WorkKind::kMoveOut: tables_->demotion.EndWork(done, parts_.tier, job->states.get()); break;
    case WorkKind::kVerify: tables_->scrub.EndWork(done, parts_.tier, *job->states); break;
    case WorkKind::kWiden:
    case WorkKind::kAccumulate:
    case WorkKind::kScan: job->intake.EndWork(done); break;
  }
}

// Parked requests are tried again only when one of them names this chunk: a job has many chunks,
// and may wait for the last of them.
void StepDesk::NoteUpdated(Job* job, ChunkId id) {
  Chunk& chunk = job->states->chunk(id);
  if (std::exchange(chunk.awaited, false)) ++job->changes;
  for (const ParameterRun& run : job->states->runs(chunk))
    tables_->counters.parameters_updated += run.count;
}

// An off-host chunk finished its update, or its initial store: its weights are loaded.
void StepDesk::TakeFinished(Job* job, ChunkId chunk, bool updated) {
  if (updated) {
    job->updates.EndAway(chunk);
    return NoteUpdated(job, chunk);
  }
  job->states->MarkLoaded(&job->states->chunk(chunk));
  ++job->changes;
}

bool StepDesk::TakeStoredAndUpdated(Job* job) {
  SpillQueue::Finished spilled;
  GpuQueue::Finished on_gpu;
  bool worked = false;
  for (; job->spills.TakeFinished(&spilled); worked = true)
    TakeFinished(job, spilled.chunk, spilled.updated);
  for (; job->gpus.TakeFinished(&on_gpu); worked = true)
    TakeFinished(job, on_gpu.chunk, on_gpu.updated);
  return worked;
}

void StepDesk::EndTransfer(const TierDone& done) {
  if (tables_->scrub.Owns(done.staging)) return tables_->scrub.EndTransfer(done);
  if (tables_->demotion.Owns(done.staging)) return tables_->demotion.EndTransfer(done, parts_.tier);
  Job* job = tables_->FindJob(done.job);
  TP_CHECK(job != nullptr, "a job stays while its states move");
  job->fill.Owns(done.staging) ? job->fill.EndTransfer(done) : job->spills.EndTransfer(done);
}

bool StepDesk::TendTier() {
  if (parts_.tier == nullptr) return false;
  bool worked = parts_.tier->Progress();
  TierLate late;
  while (parts_.tier->NextLate(&late)) TakeLate(late);
  TierDone done;
  while (parts_.tier->Next(&done)) {
    worked = true;
    EndTransfer(done);
  }
  worked |= TendScrub();
  for (const auto& job : tables_->jobs) {
    if (!job->states->spills()) continue;
    worked |= TakeStoredAndUpdated(job.get());
    if (MayMove(*job)) worked |= job->spills.BeginPutOff(parts_.clock->NowNs());
  }
  worked |= weights_.Tend();
  worked |= FillStaging();
  return ReadAhead() || worked;
}

// While a save holds its updates a job takes no staging: others may need it.
bool StepDesk::MayMove(const Job& job) const {
  return job.states->spills() && !job.suspended && job.phase == JobPhase::kOpen &&
         !tables_->handing_over && !job.updates.held();
}

// Jobs take places in staging in the order of their shares. While several want some, they have
// together as many as one alone would, so that there is something to share.
bool StepDesk::FillStaging() {
  const auto riding = [this] {
    uint32_t all = 0;
    for (const auto& job : tables_->jobs) all += job->spills.riding() + job->fill.riding();
    return all;
  };
  uint32_t wanting = 0;
  for (const auto& job : tables_->jobs)
    wanting += (MayMove(*job) && job->spills.wants_to_move()) || job->fill.wants_to_move() ? 1 : 0;
  const uint32_t most = wanting > 1 ? SpillQueue::kRidesMax : StateTier::kStagingSlots;
  const auto share = [this](size_t i) -> Share& { return tables_->jobs[i]->drive_share; };
  const auto take = [this](size_t i) -> uint64_t {
    Job& job = *tables_->jobs[i];
    // A rank waits for weights; for states it does so only when the step before is not done.
    const uint64_t bytes = tables_->handing_over ? 0 : job.fill.BeginNext();
    return bytes == 0 && MayMove(job) ? job.spills.BeginNext() : bytes;
  };
  bool begun = false;
  while (wanting > 0 && riding() < most && parts_.tier->staging_free() > 0 &&
         drives_.Serve(tables_->jobs.size(), share, take))
    begun = true;
  return begun;
}

// True when half of the gradients of an open step are in, so that its update is near, and the
// update before it is written.
bool StepDesk::MayReadAhead(const Job& job) const {
  return MayMove(job) && !job.suspended && !job.updates.active() && job.states->weights_ready() &&
         job.intake.HalfScanned();
}

// Work that is due goes first: while a job lacks staging, no job keeps pieces there that are read
// ahead.
bool StepDesk::ReadAhead() {
  const bool lacking =
      std::any_of(tables_->jobs.begin(), tables_->jobs.end(), [this](const auto& job) {
        return (MayMove(*job) && job->spills.lacks_staging()) || job->fill.lacks_staging();
      });
  bool worked = false;
  for (const auto& job : tables_->jobs) {
    if (!job->states->spills()) continue;
    if (lacking || !MayReadAhead(*job)) {
      worked |= job->updates.GiveBackAhead();  // somebody may take it in the next turn
    } else if (!TP_BUGGIFY("step.read_ahead_not")) {
      worked |= job->updates.ReadAhead();
    }
  }
  return worked;
}

// Reports a late transfer to everybody; one that is lost is taken from those who wait for it.
void StepDesk::TakeLate(const TierLate& late) {
  Job* job = late.of_tables ? nullptr : tables_->FindJob(late.transfer.job);
  const bool write = late.of_tables || late.transfer.kind == nvme::IoKind::kWrite;
  LogError(late.lost ? "a drive does not answer, and is not waited for any longer"
                     : "a drive does not answer",
           {{"directory", parts_.tier->directory(late.transfer.directory).path},
            {"offset", late.offset},
            {"kind", late.of_tables ? "manifest"
                     : write        ? "write"
                                    : "read"},
            {"job", late.transfer.job},
            {"name", job != nullptr ? job->spec().name : std::string()},
            {"chunk", late.transfer.chunk},
            {"piece", late.transfer.piece},
            {"seconds", static_cast<double>(late.waited_ns) / kNsPerSecond},
            {"fix",
             "look at the kernel log for this drive; what waits for it goes on when it answers"}});
  if (!late.of_tables && tables_->demotion.Owns(late.transfer.staging))
    return tables_->demotion.TakeLate(late, parts_.tier);
  if (!late.lost || late.of_tables) return;
  if (tables_->scrub.Owns(late.transfer.staging))
    return tables_->scrub.GiveUp(parts_.tier, job != nullptr ? job->states.get() : nullptr);
  TP_CHECK(job != nullptr, "a job stays while its states move");
  job->fill.Owns(late.transfer.staging) ? job->fill.GiveUp(late) : job->spills.GiveUp(late);
}

bool StepDesk::TendScrub() {
  const auto wanted = tables_->scrub.job();
  const Job* job = wanted && !tables_->handing_over ? tables_->FindJob(*wanted) : nullptr;
  const bool open = job != nullptr && job->phase == JobPhase::kOpen;
  return tables_->scrub.Progress(parts_.tier, open ? job->states.get() : nullptr,
                                 parts_.clock->NowNs());
}

bool StepDesk::NextHash(Job* job, Work* work) {
  uint64_t begin = 0, bytes = 0;
  const FrozenChunk* chunk = tables_->frozen->NextHash(job->id, &begin, &bytes);
  if (chunk == nullptr) return false;
  *work = Work{};
  work->name = {WorkKind::kHash, job->id, 0, chunk->uploader_chunk, 0};
  work->to = &chunk->record->hasher;
  work->from = chunk->data + begin;
  work->count = bytes;
  return true;
}

void StepDesk::EndHash(const Job& job, const WorkDone& done) {
  FrozenChunk* chunk = job.states->frozen(done.name.chunk).chunk;
  if (!tables_->frozen->EndHash(chunk)) return;
  LogInfo("frozen chunk complete",
          {{"job", job.id}, {"content", HexOf(chunk->name.content)}, {"bytes", chunk->name.bytes}});
}

bool StepDesk::NextWork(Job* job, Work* work) {
  if (job->phase != JobPhase::kOpen) return false;
  // Demotion goes on for a suspended job too: others wait for its room.
  if (tables_->demotion.job() == job->id &&
      tables_->demotion.NextWork(*parts_.tier, job->states.get(), work))
    return true;
  // A fill holds staging that others may need.
  if (job->fill.NextWork(work)) return true;
  // So do the pieces that were there when the job was suspended, and those that are being checked.
  const auto scrubs = [&] {
    return parts_.tier != nullptr &&
           tables_->scrub.NextWork(job->id, *parts_.tier, *job->states, work);
  };
  if (job->suspended)
    return job->spills.NextLoadWork(work) || job->updates.NextStaged(work) || scrubs();
  if (NextHash(job, work)) return true;
  if (!job->narrows.empty()) {
    const NarrowTask task = job->narrows.Front();
    job->narrows.Pop();
    const Chunk& chunk = job->states->chunk(task.chunk);
    const uint64_t begin = job->states->ShardBegin(task.chunk, task.rank);
    *work = Work{};
    work->name = {WorkKind::kNarrow, job->id, 0, task.chunk, task.rank};
    work->to = chunk.planes.param16 + begin * BytesOf(job->spec().dtype);
    work->from = chunk.planes.master + begin * sizeof(float);
    work->dtype = job->spec().dtype;
    work->count = chunk.shard_elements;
    return true;
  }
  if (job->intake.NextWork(work) || job->spills.NextLoadWork(work) || job->gpus.NextLoadWork(work))
    return true;
  if (job->updates.NextWork(work)) return true;
  return scrubs();
}

// The highest priority of the jobs that have ranks.
Priority StepDesk::HighestPresent() const {
  Priority highest = Priority::kLow;
  for (const auto& job : tables_->jobs) {
    if (job->worker_share.priority > highest && !job->suspended && job->HasSeats())
      highest = job->worker_share.priority;
  }
  return highest;
}

// A job without ranks, or one that is suspended, holds no workers: nobody waits for its work.
void StepDesk::HoldWorkersFor(const Job& job) {
  if (tables_->jobs.size() < 2 || job.suspended || !job.HasSeats()) return;
  const int64_t now = parts_.clock->NowNs();
  asked_ns_[static_cast<size_t>(job.worker_share.priority)] = now;
  if (job.worker_share.priority < Priority::kHigh) return;
  const auto is_below = [](const auto& other) {
    return other->worker_share.priority < Priority::kHigh;
  };
  if (std::any_of(tables_->jobs.begin(), tables_->jobs.end(), is_below))
    held_until_ns_ = now + kHeldForHighNs;
}

// The highest priority of the jobs that have asked for something lately.
Priority StepDesk::HighestAsking() const {
  const int64_t since = parts_.clock->NowNs() - kGivesWayNs;
  for (size_t priority = kPriorities; priority-- > 0;) {
    if (asked_ns_[priority] > since) return static_cast<Priority>(priority);
  }
  return Priority::kLow;
}

// True when the team has so much work of lower priorities that more of it would only wait, and
// delay what comes from `highest`.
bool StepDesk::TeamHasEnoughBelow(Priority highest) const {
  const uint64_t workers = std::max(parts_.team->threads(), 1U);
  uint64_t items = 0, bytes = 0;
  for (const auto& job : tables_->jobs) {
    if (job->worker_share.priority >= highest) continue;
    items += job->work_at_team;
    bytes += job->bytes_at_team;
  }
  return items >= workers && bytes >= workers * FairShare::kQuantum;
}

// Gives some work to jobs of lower priority than `high`, when it is time again. They take turns.
bool StepDesk::GiveBesideHigh(const std::function<uint64_t(size_t)>& take) {
  const int64_t now = parts_.clock->NowNs();
  if (now < next_beside_high_ns_) return false;
  const size_t jobs = tables_->jobs.size();
  uint64_t given = 0;
  for (size_t without = 0; without < jobs && given < kBytesBesideHigh && parts_.team->HasRoom();) {
    const size_t at = ++last_beside_high_ % jobs;
    Share& share = tables_->jobs[at]->worker_share;
    const uint64_t bytes = share.priority < Priority::kHigh ? take(at) : 0;
    without = bytes == 0 ? without + 1 : 0;
    share.served += bytes;
    given += bytes;
  }
  if (given > 0)
    next_beside_high_ns_ = now + kBesideHighNs / std::max<int64_t>(parts_.team->threads(), 1);
  return given > 0;
}

bool StepDesk::FeedTeam() {
  if (!parts_.team->HasRoom()) return false;
  if (held_until_ns_ > 0 && parts_.clock->NowNs() >= held_until_ns_) held_until_ns_ = 0;
  const bool held = held_until_ns_ > 0;
  const Priority highest = HighestPresent(),
                 asking = tables_->jobs.size() > 1 ? HighestAsking() : Priority::kLow;
  const auto share = [this](size_t i) -> Share& { return tables_->jobs[i]->worker_share; };
  const auto take = [this, asking](size_t i) -> uint64_t {
    Job* job = tables_->jobs[i].get();
    Work work;
    if (!NextWork(job, &work)) return 0;
    work.gives_way = job->worker_share.priority < asking;
    const uint64_t bytes = BytesTouched(work);
    ++job->work_at_team;
    job->bytes_at_team += bytes;
    parts_.team->Push(work);
    return bytes;
  };
  bool fed = held && GiveBesideHigh(take);
  while (parts_.team->HasRoom()) {
    const Priority lowest = held                          ? Priority::kHigh
                            : TeamHasEnoughBelow(highest) ? highest
                                                          : Priority::kLow;
    if (!workers_.Serve(tables_->jobs.size(), share, take, lowest)) break;
    fed = true;
  }
  return fed;
}

}  // namespace tidepool::memserver
