// ThreadNice: a thread that is below the others for the system while it does what may wait: the scheduler gives it what they leave.
//
// The thread that made it. Going back needs a right (RLIMIT_NICE, or CAP_SYS_NICE), which is tried once: without it the thread never
// changes.
#pragma once

namespace tidepool::memserver {

class ThreadNice {
 public:
  ThreadNice();
  void SetBelow(bool below);
  bool may_change() const { return may_change_; }

 private:
  const int own_;
  bool may_change_ = false, below_ = false;
};

}  // namespace tidepool::memserver
