#include "memserver/update/thread_nice.h"

#include <sys/resource.h>

#include <cstdint>

#include "base/log.h"

namespace tidepool::memserver {
namespace {

constexpr int kLowest = 19;

// Of the calling thread alone, on Linux.
bool Set(int nice) {
  return setpriority(PRIO_PROCESS, 0, nice) == 0;
}

}  // namespace

// Upwards first: without the right nothing has changed then.
ThreadNice::ThreadNice() : own_(getpriority(PRIO_PROCESS, 0)) {
  rlimit limit{};
  const bool by_limit = getrlimit(RLIMIT_NICE, &limit) == 0 && static_cast<int64_t>(limit.rlim_cur) >= 20 - own_;
  may_change_ = own_ < kLowest && (by_limit || (Set(own_ - 1) && Set(own_)));
  if (!may_change_) LogDebug("a worker cannot give way to others: it has no right to go back", {{"nice", own_}});
}

void ThreadNice::SetBelow(bool below) {
  if (below == below_ || !may_change_) return;
  if (Set(below ? kLowest : own_)) below_ = below;
}

}  // namespace tidepool::memserver
