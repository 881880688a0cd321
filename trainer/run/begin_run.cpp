// How TrainingRun gets a model ready to train: from the server's slot after a held step or a
// checkpoint's step, or with new weights.
#include <algorithm>
#include <utility>

#include "base/checkpoint/checkpoint_files.h"
#include "base/log.h"
#include "base/text/plural.h"
#include "base/units.h"
#include "trainer/checkpoint/step_replay.h"
#include "trainer/run/resuming/resume.h"
#include "trainer/run/resuming/run_note.h"
#include "trainer/run/training_run.h"

namespace tidepool::trainer {

Status TrainingRun::TakeSlot() {
  TP_RETURN_IF_ERROR(session_->Attach());
  const client::Attachment& slot = session_->service()->attachment();
  start_ = StartPointOf(slot);
  sealed_ = std::max(sealed_, start_.version);
  attempts_.BeginsAt(start_.version);
  if (slot.weights_ready && !resume_) return StillHeld(plan_.spec.name, start_.version);
  TP_RETURN_IF_ERROR(
      CheckRunNote(slot.note, data_->note,
                   {.job = plan_.spec.name, .rank = place_.rank, .version = start_.version}));

  RunSetting setting = Setting();
  setting.server =
      session_->socket_dir() + ", " + FormatBytes(slot.pool_bytes) + " reserved for this job";
  voice_.Introduce(plan_, setting);
  return slot.weights_ready ? Continue(slot.note) : Begin();
}

// The states of steps that this process knows as sealed are gone.
Status TrainingRun::Begin() {
  if (!checkpoint_ && resume_) TP_RETURN_IF_ERROR(kept_->MayBegin(session_->socket_dir(), sealed_));
  sealed_ = 0;
  if (!checkpoint_) return {};

  const client::BeginPoint point = checkpoint_->point();
  TP_ASSIGN_OR_RETURN(const uint64_t cursor,
                      CursorInSequences(point.data_cursor, point.version, options_));
  start_ = {.version = point.version,
            .data_cursor = cursor,
            .loss_scale = point.loss_scale,
            .scaler_steps = point.scaler_steps,
            .last_skipped = false,
            .random_state = point.random_state};
  attempts_.BeginsAt(point.version);
  return {};
}

Status TrainingRun::OpenCheckpoint() {
  TP_RETURN_IF_ERROR(CheckCheckpoints(options_));
  TP_ASSIGN_OR_RETURN(const std::string path, CheckpointToResume(options_));
  if (path.empty()) return {};
  // If memserver may hold the job, the checkpoint is read only when it does not.
  TP_ASSIGN_OR_RETURN(LoadedCheckpoint opened,
                      LoadedCheckpoint::Open(path, place_.rank == 0 && !resume_));
  const NotedSlot slot{
      .job = plan_.spec.name, .rank = place_.rank, .version = opened.point().version};
  TP_RETURN_IF_ERROR(CheckRunNote(opened.note(), data_->note, slot));
  checkpoint_.emplace(std::move(opened));
  return {};
}

Status TrainingRun::Continue(const std::string& note) {
  TP_ASSIGN_OR_RETURN(start_.data_cursor,
                      CursorInSequences(start_.data_cursor, start_.version, options_));

  if (note.empty())
    voice_.Say(
        "resume    the server keeps no note of the job's data (an older release): data and --seed "
        "are not compared\n");
  for (const std::string& line : DescribeChanges(note, data_->note))
    voice_.Say("resume    " + line + "\n");

  voice_.Say("resume    job " + plan_.spec.name + " goes on behind its sealed step " +
             std::to_string(start_.version) + " of " + std::to_string(options_.training.steps) +
             "; no weights are loaded\n");
  return {};
}

Status TrainingRun::ProvideBase() {
  if (plan_.base == nullptr) return {};
  const auto read = [this](size_t index, uint64_t begin, std::span<std::byte> bytes) {
    return plan_.base->Read(index, begin, bytes);
  };
  TP_ASSIGN_OR_RETURN(const uint64_t put, session_->ProvideFrozen(read));
  voice_.Say("base      " + plan_.base->file().path() + ": " +
             (put > 0 ? FormatBytes(put) + " of it put by this rank\n"
                      : std::string("the server has it already\n")));
  return {};
}

// Adapters and their moments are valid only for the base that they were trained with.
Status TrainingRun::CheckBaseOfCheckpoint() {
  if (!plan_.lora.on() || place_.rank != 0) return {};
  const std::string hash = NameOfBase();
  if (hash == checkpoint_->base_hash()) return {};
  return Status(ErrorId::kDataBad, "the adapters of the checkpoint were trained over another base")
      .Where(checkpoint_->path())
      .Why("the base of this run has the hash " + hash +
           " (`b2sum -l 256`); the checkpoint names " +
           (checkpoint_->base_hash().empty() ? std::string("none") : checkpoint_->base_hash()))
      .Fix("give the base that they were trained over, with --base");
}

// Each rank puts its shards of weights and moments, and the step: the job as it was saved.
Status TrainingRun::LoadCheckpoint() {
  client::ChunkService* service = session_->service();
  if (resume_ && place_.rank == 0) TP_RETURN_IF_ERROR(VerifyCheckpoint(checkpoint_->path()));
  TP_RETURN_IF_ERROR(CheckBaseOfCheckpoint());
  TP_ASSIGN_OR_RETURN(const client::Ticket begun, service->StartBeginAt(checkpoint_->point()));
  TP_RETURN_IF_ERROR(service->Wait(begun).status());
  TP_RETURN_IF_ERROR(model_->LoadCheckpoint(*checkpoint_));
  voice_.Say("resume    behind step " + std::to_string(start_.version) + " of " +
             checkpoint_->path() + "\n");
  return ReplayLog();
}

// Rank 0 checks the log and says how far it goes: a process of the run before may still write.
Status TrainingRun::OpenLog() {
  struct Found {
    uint64_t last = 0, run = 0, bad = 0;
  };
  Found found;
  StepLogTask task{.folder = options_.checkpoint.durable_steps,
                   .run = StepLogRunOf(checkpoint_->path()),
                   .base = start_.version,
                   .model = StepLogModelOf(plan_.spec),
                   .gradient_bytes = GradientBytesOf(plan_.spec),
                   .last = options_.training.steps};

  Status opened;
  if (place_.rank == 0 && task.run != 0) {
    Result<StepLog> log = StepLog::Open(task);
    opened = log.status();
    if (log.ok()) {
      found.last = log->steps().empty() ? 0 : log->steps().back().version;
      found.run = log->run();
      log_.emplace(std::move(log).value());
    }
    found.bad = opened.ok() ? 0 : 1;
  }

  TP_RETURN_IF_ERROR(session_->world()->Broadcast(&found, sizeof found));
  if (found.bad != 0 && place_.rank != 0)
    return Status(ErrorId::kCheckpointBad, "rank 0 cannot read the log of steps")
        .Where(options_.checkpoint.durable_steps);
  TP_RETURN_IF_ERROR(opened);

  logged_run_ = found.run;
  if (place_.rank == 0 || found.last == 0) return {};
  task.last = found.last;
  task.checks_gradients = false;
  TP_ASSIGN_OR_RETURN(StepLog log, StepLog::Open(task));
  log_.emplace(std::move(log));
  return {};
}

Status TrainingRun::ReplayLog() {
  logged_run_ = 0;
  log_.reset();
  // A checkpoint that was named is meant as it is.
  const bool wanted = options_.job.resume == "latest" || options_.job.resume == "auto";
  if (options_.checkpoint.durable_steps.empty() || !wanted) return {};
  TP_RETURN_IF_ERROR(OpenLog());
  if (!log_ || log_->steps().empty()) return {};

  const int64_t begin_ns = setup_.clock->NowNs();
  TP_RETURN_IF_ERROR(ReplaySteps({.service = session_->service(),
                                  .spec = plan_.spec,
                                  .rank = place_.rank,
                                  .log = &*log_,
                                  .copy_in = device_->ForSession().copy_in}));
  const LoggedStep last = log_->steps().back();

  TP_ASSIGN_OR_RETURN(const uint64_t cursor,
                      CursorInSequences(last.data_cursor, last.version, options_));
  start_ = {.version = last.version,
            .data_cursor = cursor,
            .loss_scale = last.loss_scale,
            .scaler_steps = last.scaler_steps,
            .last_skipped = last.skipped != 0,
            .random_state = last.random_state};
  sealed_ = start_.version;
  attempts_.BeginsAt(start_.version);

  const double seconds =
      static_cast<double>(setup_.clock->NowNs() - begin_ns) / static_cast<double>(kNsPerSecond);
  voice_.Say("resume    " + Counted(log_->steps().size(), "logged step") + " made again, to step " +
             std::to_string(start_.version) + ", in " + FormatDuration(seconds) + "\n");
  log_.reset();
  return {};
}

// Steps that follow a log are logged from the first one on; others when a checkpoint was begun.
Status TrainingRun::BeginStepLog() {
  step_log_.reset();
  if (options_.checkpoint.durable_steps.empty() || place_.rank != 0) return {};
  step_log_.emplace(
      RunStepLog::Parts{.options = options_.checkpoint,
                        .spec = plan_.spec,
                        .clock = setup_.clock,
                        .say = [this](const std::string& line) { voice_.Say(line); }});

  const uint64_t previous = std::exchange(logged_run_, 0);
  if (previous == 0) return {};
  const Status begun = step_log_->Begin(start_.version, previous, session_->service());
  if (begun.code() == Code::kUnavailable) return begun;
  if (!begun.ok()) LogWarn("steps are not logged yet", {{"error", begun.Line()}});
  return {};
}

Status TrainingRun::LoadWeights() {
  if (session_->service()->attachment().weights_ready) return {};
  if (checkpoint_) return LoadCheckpoint();
  if (resume_)
    voice_.Say("resume    the server holds no weights of job " + plan_.spec.name +
               ": starting at step 1\n");
  TP_RETURN_IF_ERROR(model_->LoadWeights());
  if (plan_.from != nullptr)
    voice_.Say("from      " + plan_.from->path() + " (" + plan_.from->Describe() + ")\n");
  return {};
}

Status TrainingRun::Build() {
  TP_ASSIGN_OR_RETURN(model_, RunModel::Make({.options = options_,
                                              .plan = plan_,
                                              .device = device_.get(),
                                              .session = session_.get(),
                                              .clock = setup_.clock,
                                              .foresees = setup_.foresees}));
  TP_RETURN_IF_ERROR(ProvideBase());
  return LoadWeights();
}

}  // namespace tidepool::trainer
