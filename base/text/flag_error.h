// FlagError: what CLI11 finds wrong with a command line, in plain words, with the flag to change.
//
// Any thread; pure.
#pragma once

#include <string>

namespace tidepool {

struct FlagError {
  std::string what;
  std::string fix;  // empty: the text names no flag to change
};

// `text`: the text of a CLI::ParseError. A flag given twice, a flag without its value, two flags
// that exclude each other, a flag that needs another, and a value that is no number or out of its
// range get a fix that names the flag; other texts are returned as they are.
FlagError PlainFlagError(const std::string& text);

}  // namespace tidepool
