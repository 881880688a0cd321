// thin_trainer: one rank of a job without a model, as a program (tests/process/rig/thin_job.h).
// Prints the hash of its final weights.
#include <unistd.h>

#include <charconv>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/system/last_words.h"
#include "base/point.h"
#include "device/cuda/cuda_device.h"
#include "tests/process/rig/flag_reader.h"
#include "tests/process/rig/thin_job.h"

namespace {

[[gnu::init_priority(101)]] const tidepool::LastWords last_words("thin_trainer");

volatile std::sig_atomic_t may_leave = 0;

// What a data-loading worker is to a trainer: a fork that holds the parent's descriptors and
// outlives it.
void ForkSleeper() {
  const pid_t child = fork();
  if (child == 0) {
    sleep(60);
    _exit(0);
  }
  std::cout << "child " << child << std::endl;
}

void AddFrozen(tidepool::testing::FlagReader* flags, tidepool::testing::ThinOptions* options) {
  flags->Add("--frozen", &options->frozen_chunks);
  flags->Add("--frozen-seed", &options->frozen_seed);
  flags->Switch("--frozen-wrong", &options->frozen_wrong,
                "put other bytes than those that are named");
  flags->Switch("--frozen-written", &options->frozen_written, "try to write to them");
  options->on_frozen = [](uint64_t bytes) {
    std::printf("frozen put %llu\n", static_cast<unsigned long long>(bytes));
    std::fflush(stdout);
  };
}

// A flag in milliseconds for a variable in nanoseconds.
void AddMs(tidepool::testing::FlagReader* flags, const std::string& name, int64_t* ns,
           const std::string& help = "") {
  flags->Set(
      name,
      [ns](std::string_view word) {
        int64_t ms = 0;
        const auto end = word.data() + word.size();
        if (std::from_chars(word.data(), end, ms).ptr != end) return false;
        *ns = ms * tidepool::kNsPerMs;
        return true;
      },
      help);
}

tidepool::Result<tidepool::testing::ThinGpu> OpenCuda() {
  TP_ASSIGN_OR_RETURN(auto cuda, tidepool::device::CudaDevice::Open({}));
  const auto uuid = cuda->uuid();
  const auto form = cuda->export_form();
  return tidepool::testing::ThinGpu{std::move(cuda), uuid, form};
}

}  // namespace

int main(int argc, char** argv) {
  tidepool::ArmPointsFromEnvironment();
  tidepool::testing::ThinOptions options;
  bool bf16 = false;
  tidepool::testing::FlagReader flags("one rank of a training job without a model");
  flags.Text("--socket-dir", &options.socket_dir);
  flags.Text("--name", &options.name);
  flags.Add("--world", &options.world);
  flags.Add("--rank", &options.rank);
  flags.Add("--steps", &options.steps);
  flags.Add("--chunks", &options.chunks);
  flags.Add("--elements", &options.chunk_elements);
  flags.Add("--micro-batches", &options.micro_batches);
  flags.Add("--states-on-gpu", &options.states_on_gpu);
  AddMs(&flags, "--pause-ms", &options.pause_ns);
  AddFrozen(&flags, &options);
  flags.Text("--save", &options.save_dir);
  flags.Switch("--bf16", &bf16);
  std::string rule = "adamw", states = "fp32";
  flags.Text("--optimizer", &rule);
  flags.Text("--states", &states);
  bool norms = false;
  AddMs(&flags, "--connect-timeout-ms", &options.connect_timeout_ns);
  AddMs(&flags, "--server-timeout-ms", &options.server_timeout_ns);
  AddMs(&flags, "--wait-ms", &options.queue_timeout_ns, "for room; says so");
  flags.Switch("--persistent", &options.persistent);
  flags.Switch("--norms", &norms, "print the norm of each step's gradients");
  bool stay = false;
  flags.Switch("--stay", &stay, "when all steps are done, stay attached until SIGUSR1");
  std::string device = "cpu";
  flags.Text("--device", &device, "cpu or cuda: where the rCache lies");
  bool fork_child = false;
  flags.Switch("--fork-child", &fork_child, "leave a child that sleeps and keeps every descriptor");
  if (const auto code = flags.Read(argc, argv)) return *code;
  if (options.queue_timeout_ns > 0)
    options.on_wait = [](const std::string& line) { std::cout << line << std::endl; };
  if (device == "cuda") options.gpu = OpenCuda;
  if (bf16) options.dtype = tidepool::DType::kBF16;
  options.optimizer.rule = tidepool::RuleFromName(rule).value_or(tidepool::OptimizerRule::kAdamW);
  options.optimizer.states =
      tidepool::StateFormFromName(states).value_or(tidepool::StateForm::kF32);
  options.optimizer.momentum = 0.9;
  if (norms) {
    options.on_norm = [](uint64_t step, double norm) {
      std::printf("norm %llu %a\n", static_cast<unsigned long long>(step), norm);
    };
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
  }
  if (stay) {
    std::signal(SIGUSR1, [](int) { may_leave = 1; });
    options.stays = [] { return may_leave == 0; };
    options.on_hash = [](uint64_t hash) {
      std::printf("hash %llx stays\n", static_cast<unsigned long long>(hash));
      std::fflush(stdout);
    };
  }
  if (fork_child)
    options.after_step = [](uint64_t step) {
      if (step == 1) ForkSleeper();
    };
  const auto result = tidepool::testing::RunThinJob(options);
  if (!result.ok()) {
    std::cerr << result.status().Format() << "\n";
    return result.status().exit_code();
  }
  std::cout << "hash " << std::hex << result.value().hash << std::dec << " from "
            << result.value().first_version << "\n";
  return 0;
}
