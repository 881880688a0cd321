// memserver: the daemon's program. Parses the command and its settings; each command is one
// function of the table below.
#include <sys/stat.h>

#include <cstdlib>
#include <iostream>
#include <string>

#include "base/clock.h"
#include "base/system/last_words.h"
#include "base/log.h"
#include "base/point.h"
#include "base/text/error_text.h"
#include "base/units.h"
#include "memserver/probe/bench_copies.h"
#include "memserver/probe/bench_drive.h"
#include "memserver/config/config.h"
#include "memserver/config/flags.h"
#include "memserver/probe/gpu_load.h"
#include "memserver/probe/rates_process.h"
#include "memserver/host_check.h"
#include "memserver/keeper/keeper.h"
#include "memserver/run.h"
#include "memserver/server_options.h"
#include "memserver/version.h"
#include "shm/protocol.h"
#include "shm/socket_path.h"

namespace tidepool::memserver {
namespace {

[[gnu::init_priority(101)]] const LastWords last_words("memserver");

int Fail(const Status& status) {
  std::cerr << ErrorText(status) << "\n";
  return status.exit_code();
}

std::string Environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? "" : value;
}

ConfigSources SourcesOf(const Flags& flags) {
  ConfigSources sources;
  sources.file = flags.config_file.empty() ? Environment("TIDEPOOL_CONFIG") : flags.config_file;
  sources.flags = flags.settings;
  sources.environment = Environment;
  return sources;
}

Result<LoadedConfig> Load(const Flags& flags) {
  return LoadConfig(SourcesOf(flags));
}

int Run(const Flags& flags) {
  const ConfigSources sources = SourcesOf(flags);
  const auto loaded = LoadConfig(sources);
  if (!loaded.ok()) return Fail(loaded.status());
  const Config& config = loaded.value().config;
  InitLog("memserver", config.live.log_level, config.log_format);
  SteadyClock clock;
  const RunOptions options{flags.parent_pid, flags.end_with_fd, flags.discard_kept};
  const Status status = RunServer(loaded.value(), sources, options, &clock);
  FlushLog();
  // A slow reader of stderr does not delay the end of this process.
  if (!status.ok()) SayOnStderr(ErrorText(status) + "\n");
  return status.exit_code();
}

int Check(const Flags& flags) {
  const auto loaded = Load(flags);
  if (!loaded.ok()) return Fail(loaded.status());

  SteadyClock clock;
  const auto options = ResolveOptions(loaded.value().config, &clock);
  if (!options.ok()) return Fail(options.status());
  if (const Status sound =
          CheckQuotas(options.value().settings.quota.entries, options.value().pool_bytes);
      !sound.ok())
    return Fail(sound);
  const auto findings = CheckHost(options.value());
  std::cout << FoldText(Format(findings));
  return ExitCodeOf(findings);
}

Result<std::string> BenchReport(const Flags& flags) {
  if (flags.bench_what == "copy" && flags.bench_directory.empty()) {
    TP_ASSIGN_OR_RETURN(const uint64_t bytes, ParseSize(flags.bench_bytes));
    return BenchCopies(bytes, flags.json, SteadyClock());
  }

  if (flags.bench_what == "nvme" && !flags.bench_directory.empty()) {
    TP_ASSIGN_OR_RETURN(const LoadedConfig loaded, Load(flags));
    SteadyClock clock;
    return BenchDrive({.directory = flags.bench_directory,
                       .allow_uring = loaded.config.nvme.allow_uring,
                       .json = flags.json},
                      &clock);
  }
  return Status(ErrorId::kUsageError,
                "a directory is named with `bench nvme`, and with nothing else")
      .Fix("memserver bench nvme /mnt/drive");
}

int Bench(const Flags& flags) {
  const auto report = BenchReport(flags);
  if (!report.ok()) return Fail(report.status());
  std::cout << report.value();
  return kExitOk;
}

int PrintConfig(const Flags& flags) {
  if (flags.defaults) {
    std::cout << PrintDefaults();
    return kExitOk;
  }
  const auto loaded = Load(flags);
  if (!loaded.ok()) return Fail(loaded.status());
  std::cout << PrintEffective(loaded.value());
  return kExitOk;
}

int PrintTopology(const Flags& flags) {
  const auto loaded = Load(flags);
  if (!loaded.ok()) return Fail(loaded.status());
  const auto planned = PlannedTopology(loaded.value().config);
  if (!planned.ok()) return Fail(planned.status());
  std::cout << planned.value() << "\n";
  return kExitOk;
}

int PrintVersion(const Flags&) {
  std::cout << "memserver " << kReleaseVersion << "\nprotocol " << shm::Text(shm::kOwnProtocols)
            << "\nbuild " << kBuild << "\n";
  return kExitOk;
}

int PrintHelp(const Flags&) {
  std::cout << HelpText();
  return kExitOk;
}

int PrintCompletion(const Flags& flags) {
  std::cout << CompletionText(flags.shell);
  return kExitOk;
}

int Keep(const Flags& flags) {
  const LastWords as_keeper("keeper");
  InitLog("keeper", flags.keep.log_level, flags.keep.log_format);
  return RunKeeper(flags.keep);
}

int KeepApart(const Flags& flags) {
  const LastWords as_keeper("keeper");
  const auto loaded = Load(flags);
  if (!loaded.ok()) return Fail(loaded.status());
  const Config& config = loaded.value().config;
  InitLog("keeper", config.live.log_level, config.log_format);

  ApartKeeperOptions options;
  options.socket_dir = config.socket_dir.empty() ? shm::DefaultSocketDir() : config.socket_dir;
  options.lease_ms = static_cast<uint64_t>(config.times.lease_ns / kNsPerMs);
  options.log_level = config.live.log_level;
  options.log_format = config.log_format;
  SteadyClock clock;
  const auto ended = RunKeeperApart(options, &clock);
  return ended.ok() ? ended.value() : Fail(ended.status());
}

int LoadGpu(const Flags& flags) {
  return RunGpuLoad(flags.gpu, SteadyClock());
}

int MeasureMachine(const Flags& flags) {
  const LastWords as_process("measure-rates");
  InitLog("measure-rates", LogLevel::kInfo, LogFormat::kAuto);
  const auto order = OrderOf(flags.rates);
  SteadyClock clock;
  return order.ok() ? RunMeasureRates(order.value(), &clock) : Fail(order.status());
}

struct CommandAction {
  Command command;
  int (*act)(const Flags& flags);
};
constexpr CommandAction kActions[] = {{Command::kRun, Run},
                                      {Command::kCheck, Check},
                                      {Command::kBench, Bench},
                                      {Command::kConfig, PrintConfig},
                                      {Command::kTopo, PrintTopology},
                                      {Command::kVersion, PrintVersion},
                                      {Command::kHelp, PrintHelp},
                                      {Command::kCompletion, PrintCompletion},
                                      {Command::kKeep, Keep},
                                      {Command::kKeeper, KeepApart},
                                      {Command::kGpuLoad, LoadGpu},
                                      {Command::kMeasureRates, MeasureMachine}};

int Main(int argc, char** argv) {
  ArmPointsFromEnvironment();
  const auto flags = ParseFlags(argc, argv);
  if (!flags.ok()) return Fail(flags.status());
  for (const CommandAction& action : kActions) {
    if (action.command == flags.value().command) return action.act(flags.value());
  }
  return kExitUsage;
}

}  // namespace
}  // namespace tidepool::memserver

int main(int argc, char** argv) {
  return tidepool::memserver::Main(argc, argv);
}
