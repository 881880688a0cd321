// The command line of `trainer`: its subcommands and the flags of each.
#pragma once

#include <string>
#include <vector>

#include "trainer/run/run_options.h"

namespace tidepool::trainer {

// The subcommands.
enum class Command {
  kRun,
  kEstimate,
  kSample,
  kLaunch,
  kVersion,
  kDoctor,
  kExport,
  kTokenize,
  kRates
};

// The parsed command line.
struct CommandLine {
  Command command = Command::kRun;
  RunOptions options;
  uint32_t launch_ranks = 0;
  uint32_t launch_restarts = 3;
  // The words after `--`; if they are run and its flags, `options` are those of each rank.
  std::vector<std::string> launch_arguments;
};

// Parses the command line, with the file of --config. On --help, --version, completion,
// --print-config or a usage error it prints and returns false with the exit code (0 or 2).
bool ParseCommandLine(int argc, char** argv, CommandLine* line, int* exit_code);

}  // namespace tidepool::trainer
