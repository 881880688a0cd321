// Ways to leave a wait that cannot be left: a collective whose peer has died, and which the library
// below us does not end.
//
// Any thread; neither returns, and no destructor runs: what the process held beside memory
// (sockets, seats) closes as at its death.
#pragma once

#include "trainer/launch/rank_place.h"

namespace tidepool::trainer {

// The same command line in the same process, without any descriptor of this program but the
// standard ones. The environment is the same too, but for `changes`. Ends the process with
// kExitFailed where the system refuses.
[[noreturn]] void BeginAnew(const Environment& changes);
[[noreturn]] void EndAtOnce(int exit_code);

}  // namespace tidepool::trainer
