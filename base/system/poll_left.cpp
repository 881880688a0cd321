#include "base/system/poll_left.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "base/clock.h"

namespace tidepool {

int PollLeft(pollfd* entry, int64_t* left_ns) {
  const bool bounded = *left_ns != INT64_MAX;
  const int64_t begin = std::max<int64_t>(*left_ns, 0);
  timespec left{begin / kNsPerSecond, begin % kNsPerSecond};
  // The raw system call: it writes back the remaining time, which the C library's function hides.
  const long ready = syscall(SYS_ppoll, entry, 1, bounded ? &left : nullptr, nullptr, 0);
  if (bounded) *left_ns = static_cast<int64_t>(left.tv_sec) * kNsPerSecond + left.tv_nsec;
  return static_cast<int>(ready);
}

}  // namespace tidepool
