// Flags: the command line of memserver, parsed into a command and its settings.
//
// One thread, at the start of main. The one door to CLI11 in this room.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "memserver/keeper/keeper.h"

namespace tidepool::memserver {

// The subcommands.
enum class Command {
  kRun,
  kCheck,
  kConfig,
  kBench,
  kTopo,
  kVersion,
  kHelp,
  kCompletion,
  kKeep,
  kKeeper,
  kGpuLoad,
  kMeasureRates
};

struct Flags {
  Command command = Command::kRun;
  std::string config_file;
  std::map<std::string, std::string> settings;  // "--pool" -> "4GiB"
  bool defaults = false;                        // for `config`
  int parent_pid = 0;                           // for `run`: end when this process ends; 0: never
  int end_with_fd = -1;                         // for `run`: end when this pipe closes; -1: never
  bool discard_kept = false;                    // for `run`: give up the jobs that the keeper holds
  std::string bench_what;                       // for `bench`: "copy", "nvme"
  std::string bench_directory;                  // for `bench nvme`
  std::string bench_bytes = "2GiB";             // for `bench copy`
  bool json = false;                            // for `bench`
  std::string shell;                            // for `completion`: "bash", "zsh", "fish"
  KeeperOptions keep;                           // for `keep`, which only memserver calls
  std::string gpu;                              // for `gpu-load`, likewise: its UUID
  std::vector<std::string> rates;               // for `measure-rates`, likewise: its words
};

// Errors: kUsageError, with the nearest known word.
Result<Flags> ParseFlags(int argc, const char* const* argv);
// Examples first, then commands, then settings.
std::string HelpText();
// The completion script of memserver's command line for `shell`.
std::string CompletionText(const std::string& shell);

}  // namespace tidepool::memserver
