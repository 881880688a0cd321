// CpuWatch: a thread that checks ten times a second whether its creator's thread gets its CPU, and
// makes compute threads wait briefly (short_waits.h) while it does not, because of other jobs on
// this machine, optimizer workers, or any other computation.
//
// The computing thread creates and destroys it; shared() from any thread.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <thread>

#include "base/clock.h"
#include "base/unique_fd.h"

namespace tidepool::trainer {

class CpuWatch {
 public:
  // Null if there is nothing to watch: a single compute thread waits for nobody; or if waits cannot
  // be made short, or the user controls them. `clock` outlives the watch.
  static std::unique_ptr<CpuWatch> Start(uint32_t compute_threads, const Clock* clock);
  ~CpuWatch();
  CpuWatch(const CpuWatch&) = delete;
  CpuWatch& operator=(const CpuWatch&) = delete;

  // Whether waits are short now.
  bool shared() const { return shared_; }

 private:
  CpuWatch(UniqueFd end, pid_t watched, const Clock* clock);
  void Look();
  const UniqueFd end_;  // readable when the thread must end
  const pid_t watched_;
  const Clock* const clock_;
  std::atomic<bool> shared_ = false;
  std::thread thread_;
};

}  // namespace tidepool::trainer
