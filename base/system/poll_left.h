// PollLeft: poll(2) with a time limit that several calls share. The kernel counts it down, so no
// clock is read.
//
// Any thread. Times are nanoseconds of the machine's monotonic clock. Allocates nothing.
#pragma once

#include <poll.h>

#include <cstdint>

namespace tidepool {

// Waits until `entry` is ready, at most `*left_ns`, and subtracts the time waited; INT64_MAX waits
// without a limit and is not changed. Returns what poll(2) returns: 1 ready, 0 timeout, -1 with
// errno (EINTR: call again).
int PollLeft(pollfd* entry, int64_t* left_ns);

}  // namespace tidepool
