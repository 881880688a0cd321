// Two ways out of a wait that cannot be ended: a collective whose peer has died and that Gloo does
// not end.
//
// Any thread. Neither returns, and no destructor runs: sockets and slots of the process close as
// they do when it dies.
#pragma once

#include "trainer/launch/rank_place.h"

namespace tidepool::trainer {

// Runs the same command line again in the same process. Of all descriptors only the standard ones
// stay open. The environment stays, but for `changes`. Ends the process with kExitFailed where the
// system refuses.
[[noreturn]] void BeginAnew(const Environment& changes);
[[noreturn]] void EndAtOnce(int exit_code);

}  // namespace tidepool::trainer
