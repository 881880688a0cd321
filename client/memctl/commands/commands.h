// Commands of memctl: asks the admin socket and gives back what is to be printed.
//
// One thread; blocks for at most the time-out of the invocation a request.
#pragma once

#include <string>

#include "base/status.h"
#include "client/memctl/flags/invocation.h"
#include "client/memctl/views/render.h"
#include "client/memctl/views/shown.h"

namespace tidepool::client {

// Runs `invocation.command` once. Errors: kNoServer, kWaitTimeout, kServerGone, kHandshakeBad, and
// what the server answered (kAdminNotFound, kAdminBadRequest, kNotReady).
Result<Shown> RunCommand(const Invocation& invocation, const Style& style);

}  // namespace tidepool::client
