// Flags of memctl: parses the command line into one struct.
//
// One thread. The doors to CLI11 in this room are flags.cpp, change_flags.cpp and look_flags.cpp.
#pragma once

#include <optional>
#include <string>

#include "client/memctl/flags/invocation.h"

namespace tidepool::client {

// What main does next: run the invocation, or print `text` and exit with `exit_code` (help,
// version, usage errors).
struct ParsedLine {
  std::optional<Invocation> invocation;
  std::string text;
  int exit_code = 0;
};
ParsedLine ParseCommandLine(int argc, const char* const* argv);

}  // namespace tidepool::client
