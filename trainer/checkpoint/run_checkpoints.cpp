#include "trainer/checkpoint/run_checkpoints.h"

#include <csignal>
#include <filesystem>
#include <utility>

#include "base/checkpoint/checkpoint_files.h"
#include "base/checkpoint/step_log.h"
#include "base/log.h"
#include "base/system/whole_file.h"
#include "client/checkpoint/write_states.h"
#include "trainer/checkpoint/loaded_checkpoint.h"
#include "trainer/inputs/weights_file.h"
#include "trainer/launch/rank_place.h"

namespace tidepool::trainer {
namespace {

constexpr int64_t kLookNs = 20 * kNsPerMs;
// Replaces the exit code of a writer that was abandoned.
constexpr int kLeftAlone = -1;
// From the server's last byte until the files are on disk. A checkpoint that takes longer makes the
// next one be skipped, and costs no step.
constexpr int64_t kSyncWaitNs = 10 * kNsPerSecond;
constexpr int64_t kSayNs = 60 * kNsPerSecond;

}  // namespace

Status RunCheckpoints::After(Version version, client::ChunkService* service) {
  if (parts_.log != nullptr) parts_.log->Look(version, service);
  if (!IsDue(version)) return {};
  if (!AwaitWriter(service)) {
    LogWarn("a checkpoint is left out: the one before is still being written",
            {{"step", version}, {"before", writing_}});
    return {};
  }

  const Status begun = Begin(version, service);
  if (begun.code() == Code::kUnavailable) return begun;
  if (!begun.ok())
    LogWarn("a checkpoint was not begun", {{"step", version}, {"error", begun.Line()}});
  return {};
}

// A log needs a checkpoint that its steps follow; the first one does not wait for its turn.
bool RunCheckpoints::IsDue(Version version) const {
  if (parts_.options.every == 0) return false;
  const bool is_base = parts_.log != nullptr && parts_.log->wants_base();
  return is_base || version % parts_.options.every == 0;
}

// The checkpoint names the log whose steps follow it. One without a log is a checkpoint, too.
Status RunCheckpoints::BeginLog(const std::string& staged, Version version,
                                client::ChunkService* service) {
  if (parts_.log == nullptr) return {};
  const Status begun = parts_.log->Begin(version, 0, service);
  if (begun.code() == Code::kUnavailable) return begun;
  if (!begun.ok())
    LogWarn("steps are not logged; checkpoints and training go on",
            {{"step", version}, {"error", begun.Line()}});
  if (parts_.log->run() == 0) return {};
  return WriteWholeFile(staged + "/" + kStepLogFile, StepLogText(parts_.log->run()));
}

Status RunCheckpoints::Begin(Version version, client::ChunkService* service) {
  if (writer_ && !AwaitWriter(service))
    return Status(ErrorId::kSaveFailed, "the checkpoint before is still being written")
        .Where(parts_.options.dir + "/" + CheckpointName(writing_));
  TP_ASSIGN_OR_RETURN(const StageFolder stage, MakeStage());
  Status begun = Start(stage, version, service);
  std::error_code error;
  if (!begun.ok()) std::filesystem::remove_all(stage.path, error);
  return begun;
}

Status RunCheckpoints::Start(const StageFolder& stage, Version version,
                             client::ChunkService* service) {
  const std::string& staged = stage.path;
  TP_RETURN_IF_ERROR(parts_.describe(staged));
  TP_RETURN_IF_ERROR(WriteWholeFile(staged + "/" + client::kPlanFile,
                                    client::TextOf(client::PlanOf(parts_.spec, parts_.base))));
  std::string program = parts_.program;
  if (program.empty()) {
    TP_ASSIGN_OR_RETURN(program, FindProgramBeside(kCheckpointProgram));
  }

  TP_RETURN_IF_ERROR(BeginLog(staged, version, service));
  TP_ASSIGN_OR_RETURN(const UniqueFd memory, service->StreamStates(version));
  ChildOptions child;
  child.program = program;
  child.arguments = {std::filesystem::absolute(parts_.options.dir), CheckpointName(version), staged,
                     std::to_string(parts_.options.keep), std::to_string(memory.get())};
  child.environment = ReadEnvironment();
  child.passed_fds = {memory.get()};
  if (stage.lock.valid()) child.passed_fds.push_back(stage.lock.get());
  child.own_session = true;

  TP_ASSIGN_OR_RETURN(ChildProcess started, ChildProcess::Start(child));
  writer_.emplace(std::move(started));
  writing_ = version;
  return {};
}

bool RunCheckpoints::AwaitWriter(client::ChunkService* service) {
  if (!writer_) return true;
  int64_t end_ns = parts_.clock->NowNs() + kSyncWaitNs;
  std::optional<int> code = writer_->TryWait();
  while (!code && parts_.clock->NowNs() < end_ns) {
    const std::optional<Status> stream = service->StreamEnd();
    // The server ends a stream whose reader stalls; nobody tells a reader that the server is gone.
    if (!stream) end_ns = parts_.clock->NowNs() + kSyncWaitNs;
    if (stream && !stream->ok()) writer_->Signal(SIGKILL);
    code = writer_->WaitFor(kLookNs, parts_.clock);
  }

  if (code) (void)Ended(*code);
  return code.has_value();
}

Status RunCheckpoints::Finish(client::ChunkService* service) {
  if (!writer_) return {};
  int64_t said_ns = parts_.clock->NowNs(), gone_ns = 0;
  std::optional<int> code = writer_->TryWait();
  while (!code) {
    const int64_t now_ns = parts_.clock->NowNs();
    const std::optional<Status> stream = service->StreamEnd();
    const bool failed = stream && !stream->ok();
    if (failed) writer_->Signal(SIGKILL);
    if (gone_ns == 0 && failed) gone_ns = now_ns;

    // A process that is blocked in the kernel by a file system cannot be killed.
    if (gone_ns != 0 && now_ns - gone_ns > kSyncWaitNs) return Ended(kLeftAlone);
    if (now_ns - said_ns > kSayNs) {
      LogWarn("a checkpoint is still being written", {{"step", writing_}});
      said_ns = now_ns;
    }
    code = writer_->WaitFor(kLookNs, parts_.clock);
  }
  return Ended(*code);
}

Status RunCheckpoints::Ended(int code) {
  if (code == kLeftAlone) writer_->Forget();
  writer_.reset();
  const std::string path = parts_.options.dir + "/" + CheckpointName(writing_);
  if (code == 0) {
    parts_.say("saved     " + path + "\n");
    return {};
  }

  LogWarn("a checkpoint was not written; training goes on",
          {{"step", writing_}, {"exit_code", code}});
  return Status(ErrorId::kSaveFailed, "the checkpoint was not written")
      .Where(path)
      .Why("its writer has said why on standard error, and ended with " + std::to_string(code));
}

}  // namespace tidepool::trainer
