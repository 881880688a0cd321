// ThreadNice: lowers a thread's priority while it does work that may wait: it gets the CPU time
// that others leave, and a thread that wakes up on its CPU runs immediately (SCHED_IDLE; with the
// lowest nice value it would keep its CPU until the end of its slice).
//
// Made for one thread, whose Begin comes first. Restoring the priority needs a right
// (RLIMIT_NICE, or CAP_SYS_NICE), which is tried once: without it the priority never changes. If
// all CPUs are busy, almost no time may be left: a thread that must wait for this one calls Raise.
#pragma once

#include <sys/types.h>

#include <atomic>

namespace tidepool::memserver {

class ThreadNice {
 public:
  // Called by the thread itself, like SetBelow.
  void Begin();
  void SetBelow(bool below);
  bool may_change() const { return may_change_; }

  // Any thread: restores the priority, until the thread's next SetBelow(true).
  void Raise();

 private:
  // Written by the thread; others read it once they have seen `below_` set.
  pid_t thread_ = 0;
  bool may_change_ = false;
  std::atomic<bool> below_{false};
};

}  // namespace tidepool::memserver
