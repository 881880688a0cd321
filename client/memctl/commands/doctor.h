// Doctor: what is wrong, and what to do: why no memserver answers here, what its checks say, what
// an error's code means.
//
// One thread; asks the admin socket and looks at the socket directory.
#pragma once

#include "client/memctl/flags/invocation.h"
#include "client/memctl/views/render.h"
#include "client/memctl/views/shown.h"

namespace tidepool::client {

// The server's own checks. Shown::exit_code: 0 all is well, 1 warnings, 2 errors.
Result<Shown> RunHealth(const Invocation& invocation, const Style& style);
// The same, behind a look at the way there; never an error of its own. Shown::exit_code: 0, or 9
// where something does not work.
Result<Shown> RunDoctor(const Invocation& invocation, const Style& style);
// "TP2101", "2101" or "PoolFull". Errors: kUsageError.
Result<Shown> RunExplain(const Invocation& invocation, const Style& style);

}  // namespace tidepool::client
