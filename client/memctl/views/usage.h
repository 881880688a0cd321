// Usage: what memctl says of a command line that it does not understand.
//
// One thread; pure functions.
#pragma once

#include <string>
#include <vector>

namespace tidepool::client {

// Where CLI11 stopped: the command that was named (empty: none), and the words that may stand
// behind it.
struct UsageFailure {
  std::string command;                // "job quota"
  std::vector<std::string> commands;  // below it
  std::vector<std::string> left;      // words that belong to nothing
  std::vector<std::string> flags;     // long ones that may stand there
  std::string why;                    // in CLI11's words, empty where `left` says all
};
// The whole text for stderr: the first word that is not understood, with a guess at what was meant,
// or what is missing; and where it is told.
std::string UsageText(const UsageFailure& failure);

}  // namespace tidepool::client
