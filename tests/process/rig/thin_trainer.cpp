// thin_trainer: one rank of a job without a model, as a program (tests/process/rig/thin_job.h).
// Prints the hash of its final weights.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/system/last_words.h"
#include "base/point.h"
#include "device/cuda/cuda_device.h"
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

void AddFrozen(CLI::App* app, tidepool::testing::ThinOptions* options) {
  app->add_option("--frozen", options->frozen_chunks);
  app->add_option("--frozen-seed", options->frozen_seed);
  app->add_flag("--frozen-wrong", options->frozen_wrong,
                "put other bytes than those that are named");
  app->add_flag("--frozen-written", options->frozen_written, "try to write to them");
  options->on_frozen = [](uint64_t bytes) {
    std::printf("frozen put %llu\n", static_cast<unsigned long long>(bytes));
    std::fflush(stdout);
  };
}

void AddMs(CLI::App* app, const std::string& name, int64_t* ns, const std::string& text = "") {
  app->add_option_function<int64_t>(
      name, [ns](const int64_t& ms) { *ns = ms * tidepool::kNsPerMs; }, text);
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
  CLI::App app{"one rank of a training job without a model"};
  app.add_option("--socket-dir", options.socket_dir);
  app.add_option("--name", options.name);
  app.add_option("--world", options.world);
  app.add_option("--rank", options.rank);
  app.add_option("--steps", options.steps);
  app.add_option("--chunks", options.chunks);
  app.add_option("--elements", options.chunk_elements);
  app.add_option("--micro-batches", options.micro_batches);
  app.add_option("--states-on-gpu", options.states_on_gpu);
  AddMs(&app, "--pause-ms", &options.pause_ns);
  AddFrozen(&app, &options);
  app.add_option("--save", options.save_dir);
  app.add_flag("--bf16", bf16);
  std::string rule = "adamw", states = "fp32";
  app.add_option("--optimizer", rule);
  app.add_option("--states", states);
  bool norms = false;
  AddMs(&app, "--connect-timeout-ms", &options.connect_timeout_ns);
  AddMs(&app, "--server-timeout-ms", &options.server_timeout_ns);
  AddMs(&app, "--wait-ms", &options.queue_timeout_ns, "for room; says so");
  app.add_flag("--persistent", options.persistent);
  app.add_flag("--norms", norms, "print the norm of each step's gradients");
  bool stay = false;
  app.add_flag("--stay", stay, "when all steps are done, stay attached until SIGUSR1");
  std::string device = "cpu";
  app.add_option("--device", device, "cpu or cuda: where the rCache lies");
  bool fork_child = false;
  app.add_flag("--fork-child", fork_child, "leave a child that sleeps and keeps every descriptor");
  CLI11_PARSE(app, argc, argv);
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
