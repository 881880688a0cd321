// Flags of `trainer run` in a TOML file: --config FILE.
//
// Any thread. Keys are flag names without their dashes; tables only group them. The file's words
// are put before those of the command line, so that both get the same checks; the command line wins
// where both give a flag.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace tidepool::trainer {

inline constexpr const char* kConfigFlag = "--config";

// `words`: a command line including the program's name. Returns it with the file's flags added, or
// unchanged if it is not `run` or has no --config. Errors: those of ReadTomlFile, kConfigBadValue
// (a key is given twice, or is --config itself).
Result<std::vector<std::string>> WithFlagsOfFile(std::vector<std::string> words);

// One setting for ConfigText.
struct ShownFlag {
  std::string group, name, description;
  std::string value;     // in effect; empty: none
  bool is_text = false;  // written in quotes
};
// Formats such a file, with a comment line per flag; flags without a value are commented out.
std::string ConfigText(const std::vector<ShownFlag>& flags);

}  // namespace tidepool::trainer
