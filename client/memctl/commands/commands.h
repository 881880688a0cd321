// Commands of memctl: asks the admin socket and gives back what is to be printed.
//
// One thread; blocks for at most the time-out of the invocation a request.
#pragma once

#include <string>

#include "base/status.h"
#include "client/memctl/flags/flags.h"
#include "client/memctl/views/render.h"

namespace tidepool::client {

// Output of one command: results for stdout, remarks for stderr.
struct Shown {
  std::string result;
  std::string remark;
  int exit_code = 0;        // what a command has found out, where that is no error
  std::string cursor = {};  // where the next one of a --watch goes on
  std::string answer = {};  // of a change, as it came
};

// Runs `invocation.command` once. Errors: kNoServer, kWaitTimeout, kServerGone, kHandshakeBad, and
// what the server answered (kAdminNotFound, kAdminBadRequest, kNotReady).
Result<Shown> RunCommand(const Invocation& invocation, const Style& style);

}  // namespace tidepool::client
