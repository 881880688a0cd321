// Shown: the output of one memctl command.
//
// A value.
#pragma once

#include <string>

namespace tidepool::client {

// Output of one command: results for stdout, remarks for stderr.
struct Shown {
  std::string result;
  std::string remark;
  int exit_code = 0;        // the command's finding, if it is not an error
  std::string cursor = {};  // where the next round of --watch continues
  std::string answer = {};  // of a change, unmodified
};

}  // namespace tidepool::client
