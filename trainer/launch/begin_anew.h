// Two ways out of a wait that cannot be ended: a collective whose peer has died, and which Gloo
// does not end.
//
// Any thread. Neither returns, and no destructor runs: the process's sockets and slots close as
// when it dies.
#pragma once

#include "trainer/launch/rank_place.h"

namespace tidepool::trainer {

// Runs the same command line again in the same process. Only the standard descriptors stay open.
// The environment stays, except for `changes`. Exits with kExitFailed if the system refuses.
[[noreturn]] void BeginAnew(const Environment& changes);
[[noreturn]] void EndAtOnce(int exit_code);

}  // namespace tidepool::trainer
