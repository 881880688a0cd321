// Flags: the command line of memserver as a command and the settings given with it.
//
// One thread, at the start of main. The one door to CLI11 in this room.
#pragma once

#include <map>
#include <string>

#include "base/status.h"

namespace tidepool::memserver {

enum class Command { kRun, kCheck, kConfig, kVersion, kHelp };

struct Flags {
  Command command = Command::kRun;
  std::string config_file;
  std::map<std::string, std::string> settings;  // "--pool" -> "4GiB"
  bool defaults = false;                        // of `config`
  int parent_pid = 0;                           // of `run`: end when this process ends; 0: never
  int end_with_fd = -1;                         // of `run`: end when this pipe closes; -1: never
};

// Errors: kUsageError, with the nearest known word.
Result<Flags> ParseFlags(int argc, const char* const* argv);
// Examples first, then commands, then settings.
std::string HelpText();

}  // namespace tidepool::memserver
