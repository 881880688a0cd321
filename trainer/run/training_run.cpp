#include "trainer/run/training_run.h"

#include <algorithm>
#include <filesystem>
#include <iostream>

#include "base/log.h"
#include "base/text/error_text.h"
#include "base/system/whole_file.h"
#include "base/text/plural.h"
#include "base/units.h"
#include "trainer/advice/pipeline_run.h"
#include "trainer/run/describe_plan.h"
#include "trainer/threads/compute_threads.h"
#include "trainer/launch/begin_anew.h"
#include "trainer/launch/stop_flag.h"
#include "trainer/run/resuming/resume.h"
#include "trainer/inputs/run_files.h"
#include "trainer/run/resuming/run_note.h"
#include "trainer/run/save_run.h"
#include "trainer/data/tokenizer_file.h"
#include "trainer/inputs/model_config.h"
#include "trainer/model/moe/moe_layers.h"

namespace tidepool::trainer {

Status TrainingRun::Plan() {
  TP_ASSIGN_OR_RETURN(resume_, ResumeWanted(options_.job, options_.server, place_));
  cpus_ = CpuWatch::Start(UseThreads(options_.device.threads, place_.local_world), setup_.clock);
  TP_ASSIGN_OR_RETURN(CheckedRun checked, CheckRun(options_, place_, JobNameOf(options_, place_)));
  plan_ = std::move(checked.plan);
  data_ = std::move(checked.data);
  plan_.choice = setup_.settled.choice;
  plan_.way = setup_.settled.way;
  TP_RETURN_IF_ERROR(OpenCheckpoint());
  TP_RETURN_IF_ERROR(OpenDevice());
  return plan_.lora.on() ? NameBase() : Status();
}

Status TrainingRun::OpenDevice() {
  TP_ASSIGN_OR_RETURN(device_, RunDevice::Open(options_.device, place_, setup_.clock));
  if (plan_.stages) TP_RETURN_IF_ERROR(CheckPipelinePlace(options_, place_, device_->is_gpu()));
  // Every rank on GPUs, since each may have another one.
  if (device_->is_gpu() && place_.rank != 0 && !options_.output.quiet) {
    std::cerr << "device    rank " + std::to_string(place_.rank) + ": " + device_->description() +
                     "\n"
              << std::flush;
  }
  return PlaceGpuStates(options_.memory, device_->gpus(), &plan_);
}

RunSetting TrainingRun::Setting() const {
  return {.data = data_->corpus.description,
          .device = device_->description(),
          .is_gpu = device_->is_gpu(),
          .server = {}};
}

// Names the base's chunks for the server. The file's name is needed only to save adapters.
Status TrainingRun::NameBase() {
  if (plan_.base == nullptr) return NameFrozenChunks(&plan_);
  if (options_.output.dry_run) return {};
  base_names_.emplace(plan_.base, options_.output.out_dir, WallSeconds());
  return NameFrozenChunks(&plan_, &*base_names_);
}

Status TrainingRun::MakeSession() {
  kept_.emplace(options_, plan_.spec.name);
  SessionTask task{.server = options_.server,
                   .job = options_.job,
                   .spec = plan_.spec,
                   .groups = plan_.layout.data_groups,
                   .expert_groups = plan_.expert_groups,
                   .routes = HasExperts(plan_.shape)};
  if (plan_.stages) task.links = LinksOf(plan_.stages->cuts);

  task.clock = setup_.clock;
  task.saves = !options_.output.save_dir.empty();
  task.note = data_->note;
  task.resumes = resume_;
  task.states_may_stay_on_host = plan_.gpu_states.may_stay_on_host;

  task.interrupted = [this] {
    return NothingToDoTogether() ? Status(ErrorId::kStepAbandoned, "the others are done")
                                 : Status();
  };
  task.say = [this](const std::string& line) { voice_.SayWait(line); };
  task.no_server_fix =
      "start one with `memserver run`, name the directory of one that runs (--socket-dir), or give "
      "--standalone for a private one";
  // Before LibTorch takes any device memory.
  if (!options_.output.dry_run)
    TP_RETURN_IF_ERROR(WithShares(device_->MakeRcache(plan_.spec.rcache_bytes), ShortAt::kRcache));
  task.device = device_->ForSession();
  if (setup_.begin_anew) task.stuck = [this](const Status& ended) { LeaveStuck(ended); };
  TP_ASSIGN_OR_RETURN(session_, RunSession::Make(place_, std::move(task)));
  return {};
}

Result<TrainTask> TrainingRun::MakeTask() {
  TrainTask task;
  TP_ASSIGN_OR_RETURN(
      task.held_out,
      ReadHeldOut(*data_, options_.training.eval_every > 0 ? options_.training.eval_batches : 0));
  task.engine = model_->engine();
  task.world = session_->world();
  task.columns = ColumnsOf(options_, place_.world);
  task.column = ColumnOfRank(options_, place_.world, place_.rank);
  task.loss = [this](const Batch& batch) { return model_->Loss(batch); };

  if (plan_.stages) {
    task.whole_step = [this](Version version, std::span<const Batch> batches, double factor) {
      return model_->StagedStep(version, batches, factor);
    };
  }

  TP_ASSIGN_OR_RETURN(task.schedule, ScheduleOf(options_.training));
  task.start = start_;
  task.seed = options_.model.seed;
  task.loss_scaling = plan_.layout.dtype == DType::kF16;
  task.scaler = setup_.scaler;
  task.micro_batches = options_.training.micro_batches;
  task.steps = options_.training.steps;
  task.eval_every = options_.training.eval_every;

  task.stop_wanted = &StopFlag::Requested;
  task.after_step = [this](Version version) {
    sealed_ = version;
    if (place_.rank == 0) TP_RETURN_IF_ERROR(kept_->Sealed(session_->socket_dir()));
    if (place_.rank == 0) TP_RETURN_IF_ERROR(checkpoints_->After(version, session_->service()));
    return setup_.after_step ? setup_.after_step(version) : Status();
  };

  if (step_log_) {
    task.safe = [this](Version version, bool is_last) {
      const bool waits = is_last || options_.checkpoint.sync_steps;
      return step_log_->IsSafe(version, waits, session_->service());
    };
  }
  task.cpus_shared = [this] { return cpus_ != nullptr && cpus_->shared(); };
  task.clock = setup_.clock;
  if (model_->trace() != nullptr) task.trace = model_->trace()->step();
  return task;
}

Status TrainingRun::Train() {
  TP_ASSIGN_OR_RETURN(BatchCursor cursor, BatchCursor::Make(data_->corpus.train, data_->shape));
  TP_ASSIGN_OR_RETURN(
      ReportWriter reports,
      ReportWriter::Open({.directory = place_.rank == 0 ? options_.output.out_dir : "",
                          .every = options_.output.log_every,
                          .quiet = options_.output.quiet,
                          .sealed = start_.version,
                          .clock = setup_.clock}));

  checkpoints_.reset();
  TP_RETURN_IF_ERROR(BeginStepLog());
  TP_ASSIGN_OR_RETURN(TrainTask task, MakeTask());
  task.batches = &cursor;
  task.reports = place_.rank == 0 ? &reports : nullptr;

  std::optional<std::string> base;
  if (plan_.lora.on()) base = options_.checkpoint.every > 0 ? NameOfBase() : "";
  checkpoints_.emplace(RunCheckpoints::Parts{
      .options = options_.checkpoint,
      .spec = plan_.spec,
      .clock = setup_.clock,
      .describe = [this](const std::string& directory) { return DescribeModel(directory); },
      .say = [this](const std::string& line) { voice_.Say(line); },
      .base = base,
      .log = step_log_ ? &*step_log_ : nullptr});

  BeginServerTrace();
  device_->ResetPeak();
  Result<TrainSummary> trained = TrainLoop(task);
  TakeServerTrace();
  // A failure was already reported.
  (void)checkpoints_->Finish(session_->service());
  if (!trained.ok()) return WithShares(trained.status(), ShortAt::kStep);
  summary_ = trained.value();
  return {};
}

// A trace without what memserver did is better than none: its absence is said, and no error.
void TrainingRun::BeginServerTrace() {
  if (model_->trace() == nullptr) return;
  const Status begun = model_->trace()->BeginServer(session_->socket_dir(), plan_.spec.name);
  if (!begun.ok()) voice_.Say("trace     without memserver's side: " + begun.what() + "\n");
}

void TrainingRun::TakeServerTrace() {
  if (model_->trace() == nullptr) return;
  const Status taken = model_->trace()->TakeServer();
  if (!taken.ok()) voice_.Say("trace     without memserver's side: " + taken.what() + "\n");
}

// Computing the hash reads the whole base file; the result is remembered.
std::string TrainingRun::NameOfBase() {
  if (place_.rank != 0) return {};
  const std::string hash = base_names_->FileOrNothing();
  base_names_->Remember();
  return hash;
}

Status TrainingRun::DescribeModel(const std::string& directory) const {
  const ModelConfig config{
      .shape = plan_.shape,
      .bytes = plan_.shape.vocab == kByteVocab,
      .lora = plan_.lora,
      .base = plan_.lora.on() ? std::filesystem::absolute(plan_.base->file().path()).string()
                              : std::string()};
  TP_RETURN_IF_ERROR(WriteModelConfig(directory, config));
  TP_RETURN_IF_ERROR(WriteWholeFile(directory + "/" + kNoteFile, data_->note));
  return CopyTokenizer(TokenizerOf(options_), directory);
}

Status TrainingRun::Save() {
  if (options_.output.save_dir.empty() || place_.rank != 0) return {};
  TP_ASSIGN_OR_RETURN(const std::string file,
                      SaveRun({.directory = options_.output.save_dir,
                               .plan = plan_,
                               .service = session_->service(),
                               .version = summary_.version,
                               .base_names = base_names_ ? &*base_names_ : nullptr,
                               .tokenizer = TokenizerOf(options_)}));

  voice_.Say("saved     " + options_.output.save_dir + "/" + file + " (fp32 " +
             (plan_.lora.on() ? "adapters" : "weights") + " of step " +
             std::to_string(summary_.version) + ")\n");
  return {};
}

Status TrainingRun::Attempt() {
  TP_RETURN_IF_ERROR(TakeSlot());
  summary_.steps = summary_.version = start_.version;
  if (!NothingToDoTogether()) {
    const Status met = session_->Meet();
    if (met.ok()) {
      TP_RETURN_IF_ERROR(WithShares(Build(), ShortAt::kBuild));
      TP_RETURN_IF_ERROR(Train());
    } else if (!NothingToDoTogether()) {
      return met;
    }
  }

  TP_RETURN_IF_ERROR(Save());
  if (place_.rank == 0 && !StaysForMore()) kept_->Ended();
  TP_RETURN_IF_ERROR(StaysForMore() ? session_->world()->Barrier() : session_->Close());
  // Last, because a failed trace matters least.
  const bool traced = model_ != nullptr && model_->trace() != nullptr;
  return traced ? model_->trace()->Write(options_.output.trace_file, place_.rank) : Status();
}

// A run with --resume auto that a signal ends will be continued: no rank says goodbye, and
// memserver keeps the job.
bool TrainingRun::StaysForMore() const {
  return summary_.stopped && resume_ && !options_.server.standalone;
}

void TrainingRun::Leave() {
  model_.reset();
  session_->Leave();
}

// True after the last step, once it is reported. A rank that died then comes back alone, because
// the others may have left for good. (A missing report needs all ranks, for the held-out loss; none
// leaves before it is written.)
bool TrainingRun::NothingToDoTogether() const {
  return trained_already() && session_->service() != nullptr &&
         session_->service()->attachment().weights_ready &&
         (options_.output.out_dir.empty() ||
          !ReportWriter::IsUnreported(options_.output.out_dir, start_.version));
}

// True when nothing was trained and nobody continues the job, or when the run can never succeed.
// The job's name is then released for the next try.
bool TrainingRun::IsWorthless(const Status& ended) const {
  return sealed_ == 0 && !options_.server.standalone &&
         (!resume_ || ended.code() == Code::kInvalid);
}

// Another rank's death shows as a broken collective or as a server error, whichever comes first.
bool TrainingRun::MayGoOn(const Status& ended) {
  if (!EndsAttemptOnly(ended, is_training()) || !resume_ || options_.server.standalone ||
      StopFlag::Requested())
    return false;
  return attempts_.MayTryAgain(sealed_);
}

// An operation that Gloo does not end cannot be cancelled, so the whole program is replaced. No
// state is lost with it.
void TrainingRun::LeaveStuck(const Status& ended) {
  if (MayGoOn(ended)) {
    LogWarn("a collective does not end; starting this rank's program again",
            {{"rank", place_.rank}, {"why", ended.Line()}});
    session_->LeaveMeeting();
    setup_.begin_anew(attempts_);
  }
  std::cerr << "\n" << ErrorText(Explained(ended)) << "\n" << std::flush;
  EndAtOnce(ended.exit_code());
}

Status TrainingRun::WithShares(Status ended, ShortAt at) const {
  if (ended.id() != ErrorId::kDeviceMemoryShort || !device_->is_gpu()) return ended;
  Result<DeviceShares> shares = device_->Shares();
  if (!shares.ok()) return ended;
  if (at != ShortAt::kRcache) {
    shares->resident = plan_.rcache.resident_bytes;
    shares->states = GpuStateBytesOfOne(session_->spec(), device_->gpus());
    shares->rcache = plan_.rcache.bytes - std::min(plan_.rcache.bytes, plan_.rcache.resident_bytes);
  }
  if (at == ShortAt::kStep) shares->outside = SpareBytes(plan_.layout);
  // The minimum rCache is known only after an order was followed to its end.
  const bool followed = at == ShortAt::kStep && model_->engine()->cache().following();
  const ShortRun run{
      .shares = *shares,
      .wanted = at == ShortAt::kRcache ? plan_.rcache.bytes : WantedBytes(ended.what()),
      .rcache_smallest = followed ? model_->engine()->cache().SmallestRcacheBytes() : 0,
      .at = at,
      .rank = place_.rank};
  return ExplainShortage(std::move(ended), run, plan_, options_);
}

Status TrainingRun::Explained(Status ended) const {
  if (options_.server.standalone)
    return ExplainPrivateEnd(std::move(ended), session_->ServerLogTail());
  if (LosesStates(ended) && sealed_ > 0 && !options_.job.or_new)
    return AsLoss(ended, plan_.spec.name, resume_);
  const bool is_kept = EndsAttemptOnly(ended) || ended.id() == ErrorId::kRanksMissing;
  return ExplainEnd(std::move(ended), plan_.spec.name, resume_,
                    is_kept ? kept_->Until(session_->socket_dir()) : "");
}

Status TrainingRun::DryRun() const {
  if (options_.output.json && place_.rank == 0) std::cout << PlanJson(plan_) << "\n";
  voice_.SayPlan(plan_, Setting());
  voice_.Say("dry run   nothing was started\n");
  return {};
}

// `kept`: as for WhatIsLeft.
void TrainingRun::SayDone(const std::string& kept) const {
  const std::string after =
      start_.version > 0
          ? "; the last " + std::to_string(summary_.steps - start_.version) + " of them in "
          : " in ";
  voice_.Say("done      " + Counted(summary_.steps, "step") + after +
             FormatDuration(summary_.seconds) +
             (summary_.stopped
                  ? " (stopped by a signal; " + WhatIsLeft(options_, plan_.spec.name, kept) + ")"
                  : "") +
             "\n");
}

Status TrainingRun::All() {
  TP_RETURN_IF_ERROR(Plan());
  TP_RETURN_IF_ERROR(MakeSession());
  if (options_.output.dry_run) return DryRun();

  if (place_.rank == 0) TP_RETURN_IF_ERROR(PrepareOutputs(options_.output));
  if (place_.rank == 0 && base_names_) base_names_->Remember();
  if (session_->DoneBefore()) {
    voice_.Say("done      every rank had come to its end before torchrun started them again\n");
    return {};
  }

  Status ended = Attempt();
  while (!ended.ok() && MayGoOn(ended)) {
    voice_.SayWait((place_.world > 1
                        ? "another rank was lost (" + ended.what() + "); waiting for it at step "
                        : ended.what() + "; again behind step ") +
                   std::to_string(sealed_));
    session_->AwaitServer();
    Leave();
    ended = Attempt();
  }

  if (!ended.ok()) {
    if (IsWorthless(ended)) session_->GiveJobBack();
    Leave();
    return Explained(std::move(ended));
  }
  const std::string kept = StaysForMore() ? kept_->Until(session_->socket_dir()) : "";
  if (StaysForMore()) Leave();
  if (step_log_) step_log_->AwaitEnd();
  SayDone(kept);
  return {};
}

}  // namespace tidepool::trainer
