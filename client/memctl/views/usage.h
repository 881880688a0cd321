// Usage: memctl's message for a command line that it does not understand.
//
// One thread; pure functions.
#pragma once

#include <string>
#include <vector>

namespace tidepool::client {

// Where CLI11 stopped: the named command (empty: none), and the words that may follow it.
struct UsageFailure {
  std::string command;                // "job quota"
  std::vector<std::string> commands;  // below it
  std::vector<std::string> left;      // words that match nothing
  std::vector<std::string> flags;     // long flags that may follow
  std::string why;                    // CLI11's message; empty if `left` tells all
};
// The whole text for stderr: the first unknown word, with a guess at what was meant, or what is
// missing; and where to find help.
std::string UsageText(const UsageFailure& failure);

}  // namespace tidepool::client
