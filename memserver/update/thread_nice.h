// ThreadNice: puts a thread below the others for the scheduler while it does work that may wait: it
// gets the CPU time that they leave, and a thread that wakes up on its CPU runs immediately
// (SCHED_IDLE; the lowest nice value would keep its CPU until the end of its slice).
//
// Made for one thread, whose Begin comes first. Going back needs a right (RLIMIT_NICE, or
// CAP_SYS_NICE), which is tried once: without it the thread never changes. Where all CPUs are busy,
// next to nothing may be left: a thread that comes to wait for this one calls Raise.
#pragma once

#include <sys/types.h>

#include <atomic>

namespace tidepool::memserver {

class ThreadNice {
 public:
  // Called by the thread itself, as is SetBelow.
  void Begin();
  void SetBelow(bool below);
  bool may_change() const { return may_change_; }

  // Any thread: ends being below, until the thread's next SetBelow(true).
  void Raise();

 private:
  // Written by the thread; others read them once they saw it below.
  pid_t thread_ = 0;
  bool may_change_ = false;
  std::atomic<bool> below_{false};
};

}  // namespace tidepool::memserver
