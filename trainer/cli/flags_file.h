// Flags of `trainer run` in a TOML file: --config FILE.
//
// Any thread. Keys are the names of flags without their dashes; tables group them and mean nothing
// else. The words of the file are put before those of the command line, so that both are checked
// alike; where both give a flag, the command line's counts.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace tidepool::trainer {

inline constexpr const char* kConfigFlag = "--config";

// `words`: a command line from the program's name on. Returns it with what the file says, or as it
// is where it is none of `run`, or has no --config. Errors: those of ReadTomlFile, kConfigBadValue
// (a key is given twice, or is --config itself).
Result<std::vector<std::string>> WithFlagsOfFile(std::vector<std::string> words);

// One setting for ConfigText.
struct ShownFlag {
  std::string group, name, description;
  std::string value;     // in effect; empty: none
  bool is_text = false;  // it is written in quotes
};
// Such a file, with a line of comment for each flag; those without a value are commented out.
std::string ConfigText(const std::vector<ShownFlag>& flags);

}  // namespace tidepool::trainer
