// Shown: what one command of memctl has to print.
//
// A value.
#pragma once

#include <string>

namespace tidepool::client {

// Output of one command: results for stdout, remarks for stderr.
struct Shown {
  std::string result;
  std::string remark;
  int exit_code = 0;        // what a command has found out, where that is no error
  std::string cursor = {};  // where the next one of a --watch goes on
  std::string answer = {};  // of a change, as it came
};

}  // namespace tidepool::client
