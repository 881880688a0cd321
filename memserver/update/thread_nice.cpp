#include "memserver/update/thread_nice.h"

#include <sys/resource.h>

namespace tidepool::memserver {
namespace {

constexpr int kLowest = 19;

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
  if (Set(below ? kLowest : own_)) below_ = below;
}

}  // namespace tidepool::memserver
