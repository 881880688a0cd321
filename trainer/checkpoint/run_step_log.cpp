#include "trainer/checkpoint/run_step_log.h"

#include <sys/random.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <span>
#include <utility>

#include "base/formats/crc32c.h"
#include "base/log.h"
#include "base/random.h"
#include "trainer/checkpoint/loaded_checkpoint.h"
#include "trainer/launch/rank_place.h"

namespace tidepool::trainer {
namespace {

constexpr int64_t kEndWaitNs = 10 * kNsPerSecond;
constexpr int64_t kSafeLookNs = 20 * kNsPerMs;  // between looks whether the log has ended

uint64_t RandomRun(const Clock& clock) {
  uint64_t run = 0;
  if (getrandom(&run, sizeof run, 0) == sizeof run && run != 0) return run;
  return SplitMix64(static_cast<uint64_t>(clock.NowNs()) ^ static_cast<uint64_t>(getpid())).Next() |
         1;
}

std::string Hex(uint64_t number) {
  char text[32];
  std::snprintf(text, sizeof text, "%llx", static_cast<unsigned long long>(number));
  return text;
}

}  // namespace

std::vector<uint64_t> GradientBytesOf(const client::JobSpec& spec) {
  std::vector<uint64_t> bytes;
  for (const client::ParameterSpec& parameter : spec.parameters)
    bytes.push_back(parameter.element_count *
                    BytesOf(client::GradientSlotType(spec, parameter.chunk)));
  return bytes;
}

uint32_t StepLogModelOf(const client::JobSpec& spec) {
  const OptimizerSpec& rule = spec.optimizer;
  std::string text = std::string(NameOf(rule.rule)) + "\n";
  for (const double number :
       {rule.beta1, rule.beta2, rule.eps, rule.momentum, rule.dampening, rule.lr_decay,
        static_cast<double>(rule.nesterov), double{spec.max_grad_norm}})
    text += std::to_string(number) + "\n";

  for (const client::ParameterSpec& parameter : spec.parameters) {
    const client::ParameterGroup& group = spec.parameter_groups[parameter.group];
    text += parameter.name + " " + std::to_string(group.lr_scale) + " " +
            std::to_string(group.weight_decay) + " " +
            std::to_string(BytesOf(client::GradientSlotType(spec, parameter.chunk)));
    for (const uint64_t dim : parameter.dims) text += "," + std::to_string(dim);
    text += "\n";
  }
  return Crc32c(std::as_bytes(std::span(text)));
}

RunStepLog::~RunStepLog() {
  if (writer_) writer_->Forget();
}

Status RunStepLog::Begin(Version version, uint64_t previous, client::ChunkService* service) {
  if (writer_) return {};
  // Whatever comes of it, the next try is with the next checkpoint; one that was to follow another
  // run's log needs its own.
  wants_base_ = previous != 0;
  TP_RETURN_IF_ERROR(Start(version, previous, service));
  wants_base_ = false;
  parts_.say("log       every step behind " + std::to_string(version) + " is logged in " +
             parts_.options.durable_steps + "\n");
  return {};
}

Status RunStepLog::Start(Version version, uint64_t previous, client::ChunkService* service) {
  std::string program = parts_.program;
  if (program.empty()) {
    TP_ASSIGN_OR_RETURN(program, FindProgramBeside(kCheckpointProgram));
  }

  TP_ASSIGN_OR_RETURN(const UniqueFd memory, service->StreamSteps(version));
  run_ = RandomRun(*parts_.clock);

  ChildOptions child;
  child.program = program;
  child.arguments = {"steps",
                     std::filesystem::absolute(parts_.options.durable_steps),
                     std::filesystem::absolute(parts_.options.dir),
                     Hex(run_),
                     Hex(previous),
                     std::to_string(version),
                     std::to_string(StepLogModelOf(parts_.spec)),
                     std::to_string(parts_.options.every),
                     std::to_string(memory.get())};

  child.environment = ReadEnvironment();
  child.passed_fds = {memory.get()};
  child.own_session = true;
  TP_ASSIGN_OR_RETURN(client::SafeSteps safe, client::SafeSteps::Of(memory.get()));
  TP_ASSIGN_OR_RETURN(ChildProcess started, ChildProcess::Start(child));
  writer_.emplace(std::move(started));
  safe_.emplace(std::move(safe));
  follows_log_ = previous != 0;
  return {};
}

void RunStepLog::Drop() {
  writer_->Forget();
  writer_.reset();
  safe_.reset();
}

bool RunStepLog::IsSafe(Version version, bool waits, client::ChunkService* service) {
  const int64_t end_ns = parts_.clock->NowNs() + kSafeWaitNs;
  while (writer_) {
    const Version safe = safe_->version();
    if (safe >= version) return true;
    const bool may_come = safe > 0 || follows_log_;
    if (!waits || !may_come || parts_.clock->NowNs() > end_ns) return false;
    safe_->AwaitChange(safe, kSafeLookNs);
    Look(version, service);
  }
  return false;
}

void RunStepLog::Look(Version version, client::ChunkService* service) {
  if (!writer_) return;
  const std::optional<int> code = writer_->TryWait();
  const std::optional<Status> stream = service->StepsEnd();
  if (!code && !stream) return;

  // Nobody else tells the process that memserver is gone. What it has is logged to its end.
  const bool server_gone = stream && stream->id() == ErrorId::kServerGone;
  if (!code) writer_->Signal(SIGUSR1);
  LogWarn(server_gone ? "memserver ended, and the log of steps with it; a checkpoint begins another"
                      : "steps are not logged any more; checkpoints and training go on",
          {{"step", version},
           {"folder", parts_.options.durable_steps},
           {"error", stream && !stream->ok() ? stream->Line()
                     : code                  ? "its process ended with " + std::to_string(*code)
                                             : std::string("the stream has ended")}});
  wants_base_ = server_gone;
  Drop();
}

void RunStepLog::AwaitEnd() {
  if (!writer_) return;
  const std::optional<int> code = writer_->WaitFor(kEndWaitNs, parts_.clock);
  if (!code)
    LogWarn("the last steps are still being logged", {{"folder", parts_.options.durable_steps}});
  if (code && *code != 0)
    LogWarn("the last steps were not logged",
            {{"folder", parts_.options.durable_steps}, {"exit_code", *code}});
  Drop();
}

}  // namespace tidepool::trainer
