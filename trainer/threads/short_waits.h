// ShortWaits: while alive, compute threads of this process that wait for each other sleep almost at
// once instead of spinning.
//
// Any thread creates and destroys it; one at a time. It changes no operator's thread count, so no
// bits: libgomp, which LibTorch uses, spins for milliseconds, but only microseconds while it has
// more threads than the process has CPUs (GOMP_SPINCOUNT in libgomp's manual). So a sleeping team
// is kept beside the computing one, with one thread more than there are CPUs.
#pragma once

#include <atomic>
#include <thread>

namespace tidepool::trainer {

class ShortWaits {
 public:
  // False without libgomp, or if the user controls how threads wait (OMP_WAIT_POLICY,
  // GOMP_SPINCOUNT).
  static bool Possible();
  // Requires Possible().
  ShortWaits();
  ~ShortWaits();
  ShortWaits(const ShortWaits&) = delete;
  ShortWaits& operator=(const ShortWaits&) = delete;

 private:
  std::atomic<bool> ended_ = false;
  std::thread thread_;  // owner of the team
};

}  // namespace tidepool::trainer
