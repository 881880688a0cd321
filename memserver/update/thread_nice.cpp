#include "memserver/update/thread_nice.h"

#include <sys/resource.h>

#include <algorithm>

namespace tidepool::memserver {
namespace {

constexpr int kBelow = 10, kLowest = 19;

// Of the calling thread alone, on Linux.
bool Set(int nice) {
  return setpriority(PRIO_PROCESS, 0, nice) == 0;
}

}  // namespace

ThreadNice::ThreadNice() : own_(getpriority(PRIO_PROCESS, 0)) {
  may_change_ = own_ < kLowest && Set(own_ + 1) && Set(own_);
}

void ThreadNice::SetBelow(bool below) {
  if (below == below_ || !may_change_) return;
  if (Set(below ? std::min(own_ + kBelow, kLowest) : own_)) below_ = below;
}

}  // namespace tidepool::memserver
