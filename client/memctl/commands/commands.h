// Commands of memctl: each queries the admin socket and returns what to print.
//
// One thread; each request blocks for at most the time-out of the invocation.
#pragma once

#include <string>

#include "base/status.h"
#include "client/memctl/flags/invocation.h"
#include "client/memctl/views/render.h"
#include "client/memctl/views/shown.h"

namespace tidepool::client {

// Runs `invocation.command` once. Errors: kNoServer, kWaitTimeout, kServerGone, kHandshakeBad, and
// the server's (kAdminNotFound, kAdminBadRequest, kNotReady).
Result<Shown> RunCommand(const Invocation& invocation, const Style& style);

}  // namespace tidepool::client
