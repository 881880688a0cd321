// Doctor: diagnosis and remedies: why no memserver answers here, the results of its checks, and the
// meaning of an error's code.
//
// One thread; queries the admin socket and inspects the socket directory.
#pragma once

#include "client/memctl/flags/invocation.h"
#include "client/memctl/views/render.h"
#include "client/memctl/views/shown.h"

namespace tidepool::client {

// The server's own checks. Shown::exit_code: 0 all ok, 1 warnings, 2 errors.
Result<Shown> RunHealth(const Invocation& invocation, const Style& style);
// The same after checks of the connection; never returns an error. Shown::exit_code: 0, or 9 if
// something does not work.
Result<Shown> RunDoctor(const Invocation& invocation, const Style& style);
// Explains "TP2101", "2101" or "PoolFull". Errors: kUsageError.
Result<Shown> RunExplain(const Invocation& invocation, const Style& style);

}  // namespace tidepool::client
