// ThreadNice: a thread that is below the others for the system while it does what may wait: it gets
// what they leave, and whoever wakes up where it runs runs at once (SCHED_IDLE; the lowest nice
// value would keep its CPU until the end of its slice).
//
// Made for one thread, whose Begin comes first. Going back needs a right (RLIMIT_NICE, or
// CAP_SYS_NICE), which is tried once: without it the thread never changes. Where all CPUs have
// something to do, what is left may be next to nothing: whoever comes to wait for the thread calls
// Raise.
#pragma once

#include <sys/types.h>

#include <atomic>

namespace tidepool::memserver {

class ThreadNice {
 public:
  // The thread.
  void Begin();
  void SetBelow(bool below);
  bool may_change() const { return may_change_; }

  // Any thread: it is below no more, until its next SetBelow(true).
  void Raise();

 private:
  // Of the thread; others read them once it was seen to be below.
  pid_t thread_ = 0;
  bool may_change_ = false;
  std::atomic<bool> below_{false};
};

}  // namespace tidepool::memserver
