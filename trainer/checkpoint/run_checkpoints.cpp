#include "trainer/checkpoint/run_checkpoints.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "base/checkpoint/checkpoint_files.h"
#include "base/log.h"
#include "base/system/whole_file.h"
#include "client/checkpoint/write_states.h"
#include "trainer/checkpoint/loaded_checkpoint.h"
#include "trainer/launch/rank_place.h"

namespace tidepool::trainer {
namespace {

constexpr int64_t kLookNs = 20 * kNsPerMs;
// From the server's last byte until the files are on disk. A checkpoint that takes longer makes the
// next one be skipped, and costs no step.
constexpr int64_t kSyncWaitNs = 10 * kNsPerSecond;
constexpr int64_t kSayNs = 60 * kNsPerSecond;

std::string PlanOf(const client::JobSpec& spec) {
  client::StatesPlan plan;
  for (const uint32_t plane : MomentPlanesOf(spec)) plan.moments |= 1U << (plane - 1);
  for (const client::ParameterSpec& parameter : spec.parameters) {
    const bool narrow = spec.StatesOf(parameter.chunk) == StateForm::kSplitBf16;
    plan.parameters.push_back({parameter.name, narrow ? "BF16" : "F32", parameter.dims});
  }
  return TextOf(plan);
}

}  // namespace

Status RunCheckpoints::After(Version version, client::ChunkService* service) {
  if (parts_.options.every == 0 || version % parts_.options.every != 0) return {};
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

Status RunCheckpoints::Begin(Version version, client::ChunkService* service) {
  namespace fs = std::filesystem;
  const std::string& folder = parts_.options.dir;
  std::error_code error;
  fs::create_directories(folder, error);
  TP_RETURN_IF_ERROR(RemovePartials(folder));
  const std::string partial = fs::absolute(folder) / (CheckpointName(version) + ".partial");
  if (!fs::create_directory(partial, error))
    return Status(ErrorId::kSaveFailed, "cannot make the directory: " + error.message())
        .Where(partial);
  TP_RETURN_IF_ERROR(parts_.describe(partial));
  TP_RETURN_IF_ERROR(WriteWholeFile(partial + "/" + client::kPlanFile, PlanOf(parts_.spec)));

  TP_ASSIGN_OR_RETURN(const std::string program, FindProgramBeside(kCheckpointProgram));
  TP_ASSIGN_OR_RETURN(const UniqueFd memory, service->StreamStates(version));
  ChildOptions child;
  child.program = program;
  child.arguments = {partial, std::to_string(parts_.options.keep), std::to_string(memory.get())};
  child.environment = ReadEnvironment();
  child.passed_fds = {memory.get()};
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

  if (code) Ended(*code);
  return code.has_value();
}

void RunCheckpoints::Finish() {
  if (!writer_) return;
  std::optional<int> code = writer_->TryWait();
  while (!code) {
    code = writer_->WaitFor(kSayNs, parts_.clock);
    if (!code) LogWarn("a checkpoint is still being written", {{"step", writing_}});
  }
  Ended(*code);
}

void RunCheckpoints::Ended(int code) {
  writer_.reset();
  if (code == 0) {
    parts_.say("saved     " + parts_.options.dir + "/" + CheckpointName(writing_) + "\n");
  } else {
    LogWarn("a checkpoint was not written; training goes on",
            {{"step", writing_}, {"exit_code", code}});
  }
}

}  // namespace tidepool::trainer
