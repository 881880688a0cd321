// ShortWaits: while one lives, compute threads of this process that wait for each other sleep
// almost at once instead of spinning.
//
// Any thread makes and ends it; one at a time. It changes no operator's threads, so no bits:
// libgomp, on which LibTorch computes, spins some milliseconds, but some microseconds only while it
// has more threads than the process has CPUs (GOMP_SPINCOUNT in libgomp's manual). So a team of
// threads that sleep is kept beside the one that computes, one more than there are CPUs.
#pragma once

#include <atomic>
#include <thread>

namespace tidepool::trainer {

class ShortWaits {
 public:
  // Not where libgomp is missing, and not where the user has said how threads wait
  // (OMP_WAIT_POLICY, GOMP_SPINCOUNT).
  static bool Possible();
  // Requires Possible().
  ShortWaits();
  ~ShortWaits();
  ShortWaits(const ShortWaits&) = delete;
  ShortWaits& operator=(const ShortWaits&) = delete;

 private:
  std::atomic<bool> ended_ = false;
  std::thread thread_;  // whose team it is
};

}  // namespace tidepool::trainer
