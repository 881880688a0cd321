#include "memserver/loop/step_desk.h"

#include <algorithm>
#include <utility>

#include "base/buggify.h"
#include "base/check.h"
#include "base/hot.h"
#include "base/log.h"
#include "base/planted.h"
#include "base/point.h"
#include "memserver/loop/updated_chunk.h"
#include "memserver/loop/weight_desk.h"
#include "memserver/update/seal.h"

namespace tidepool::memserver {
namespace {

SpanKind KindOf(WorkKind kind) {
  switch (kind) {
    case WorkKind::kUpdate: return SpanKind::kUpdate;
    case WorkKind::kWiden:
    case WorkKind::kAccumulate: return SpanKind::kSum;
    case WorkKind::kScan: return SpanKind::kScan;
    case WorkKind::kNarrow:
    case WorkKind::kNarrowStored:
    case WorkKind::kUnstage: return SpanKind::kConvert;

    case WorkKind::kStage:
    case WorkKind::kFillWindow:
    case WorkKind::kMoveOut: return SpanKind::kStage;
    case WorkKind::kVerify:
    case WorkKind::kHash: return SpanKind::kCheck;
  }
  TP_CHECK(false, "a kind of work");
  return SpanKind::kUpdate;
}

// The span of timed work. Its index is a piece, or the rank of a shard.
Span SpanOf(const WorkDone& done) {
  return {.kind = KindOf(done.name.kind),
          .by = done.worker,
          .chunk = done.name.chunk,
          .piece = done.name.index,
          .begin_ns = done.begin_ns,
          .end_ns = done.end_ns};
}

}  // namespace

TP_HOT bool StepDesk::FinishSteps() {
  bool worked = false;
  for (const auto& job : tables_->jobs) {
    if (job->phase != JobPhase::kOpen) continue;
    worked |= job->updates.HandOut();
    if (job->updates.PublishSkipped(TP_BUGGIFY("step.publish_one") ? 1 : kSkippedChunksPerTurn) >
        0) {
      job->NoteProgress(JobProgress::kStepSkipped);
      worked = true;
    }
    if (TP_BUGGIFY("step.seal_later")) continue;

    // A save of the sealed version comes before the next seal, or else it could never be done.
    if (!job->step.AllEnded() || !job->intake.AllScanned() || !job->waiting_saves.empty()) continue;
    // A seal does not overtake a fetch whose weights only have to be read.
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
    // Drops the gradients first: ranks that were answered begin the next attempt, maybe elsewhere.
    job->intake.Drop();
    TP_POINT("server.step_dropped");
    AnswerStep(job, record, ErrorId::kNonFinite);
    job->step.Clear();
    if (!TP_PLANTED("step.numbers_outlive_attempt")) job->numbers.Clear();
    return;
  }

  const StepSaid said = job->numbers.Together();
  SealStep(job->states.get(), record, said);
  for (const RunningSteps& steps : job->running_steps) {
    // A replay has the job's numbers alone.
    if (said.any()) steps.feed->Abandon("a step has numbers of its own for some parameters");
    if (!said.any()) steps.feed->Push({record, job->updates.next_list()});
  }
  AnswerStep(job, record, ErrorId::kNone);
  job->figures.Sealed(neighbours_.clock->NowNs(), record.skipped != 0, job->numbers.facts());
  job->step.Clear();
  job->numbers.Clear();
  job->intake.BeginStep();
  job->updates.Begin(record);
  job->NoteProgress(JobProgress::kStepSealed);

  job->sealed_traffic = std::exchange(job->open_traffic, {});
}

void StepDesk::AnswerStep(Job* job, const StepRecord& record, ErrorId error) {
  for (SessionSlot* slot : job->slots) {
    if (slot == nullptr || slot->session == nullptr) continue;
    const auto answer = [&](const shm::Request& request) {
      shm::Completion completion = Failure(request, error);
      completion.version = error == ErrorId::kNone ? record.version : record.version - 1;
      completion.grad_norm = record.grad_norm;
      completion.skipped = error == ErrorId::kNone ? record.skipped : 0;
      Answer(slot, completion);
    };
    // The rank waits for the end alone, which is the last answer.
    for (const shm::Request& request : job->numbers.waiting(slot->rank)) answer(request);
    answer(shm::AsRequest(job->step.end(slot->rank)));
  }
  TP_POINT("server.step_answered");
}

TP_HOT bool StepDesk::TakeDone() {
  if (!neighbours_.team->TakeDone(&done_)) return false;
  for (const WorkDone& done : done_) EndWork(done);
  return true;
}

void StepDesk::EndWork(const WorkDone& done) {
  Job* job = tables_->FindJob(done.name.job);
  TP_CHECK(job != nullptr && job->work_at_team > 0, "a job stays while it has work at the team");
  --job->work_at_team;
  job->bytes_at_team -= done.bytes;
  if (job->spans != nullptr && done.begin_ns != 0) job->spans->Add(SpanOf(done));
  if (done.name.kind != WorkKind::kVerify && done.name.kind != WorkKind::kMoveOut)
    HoldWorkersFor(*job);

  switch (done.name.kind) {
    case WorkKind::kHash: EndHash(*job, done); break;
    case WorkKind::kNarrow: CountLoadedShard(job, done.name.chunk); break;
    case WorkKind::kUpdate:
      if (job->updates.EndWork(done)) NoteUpdated(tables_, job, done.name.chunk);
      break;
    case WorkKind::kStage:
    case WorkKind::kUnstage: job->spills.EndWork(done); break;
    case WorkKind::kNarrowStored: job->gpus.EndWork(done); break;
    case WorkKind::kFillWindow:
      if (job->fill.EndWork(done)) job->NoteProgress(JobProgress::kWindowFilled);
      break;

    case WorkKind::kMoveOut: demotion_->EndWork(done, neighbours_.tier, job->states.get()); break;
    case WorkKind::kVerify: tables_->scrub.EndWork(done, neighbours_.tier, *job->states); break;
    case WorkKind::kWiden:
    case WorkKind::kAccumulate:
    case WorkKind::kScan: job->intake.EndWork(done); break;
  }
}

TP_HOT bool StepDesk::NextHash(Job* job, Work* work) {
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

TP_HOT bool StepDesk::NextNarrow(Job* job, Work* work) {
  if (job->narrows.empty()) return false;
  const NarrowTask task = job->narrows.Front();
  job->narrows.Pop();
  const Chunk& chunk = job->states->chunk(task.chunk);
  const uint64_t begin = job->states->ShardBegin(task.chunk, task.rank);

  *work = Work{};
  work->name = {WorkKind::kNarrow, job->id, 0, task.chunk, task.rank};
  work->to = chunk.planes.param16 + begin * BytesOf(chunk.dtype);
  work->from = chunk.planes.master + begin * sizeof(float);
  work->dtype = chunk.dtype;
  work->count = chunk.shard_elements;
  return true;
}

TP_HOT bool StepDesk::NextWork(Job* job, Work* work) {
  if (job->phase != JobPhase::kOpen) return false;
  // Demotion continues for a suspended job too, since others wait for its room.
  if (demotion_->job() == job->id &&
      demotion_->NextWork(*neighbours_.tier, job->states.get(), work))
    return true;
  // A fill holds staging that others may need.
  if (job->fill.NextWork(work)) return true;
  // So do pieces that were staged when the job was suspended, and those being checked.
  const auto scrubs = [&] {
    return neighbours_.tier != nullptr &&
           tables_->scrub.NextWork(job->id, *neighbours_.tier, *job->states, work);
  };
  if (job->suspended)
    return job->spills.NextLoadWork(work) || job->updates.NextStaged(work) || scrubs();
  if (NextHash(job, work) || NextNarrow(job, work)) return true;
  if (job->intake.NextWork(work) || job->spills.NextLoadWork(work) || job->gpus.NextLoadWork(work))
    return true;
  if (job->updates.NextWork(work)) return true;
  return scrubs();
}

}  // namespace tidepool::memserver
