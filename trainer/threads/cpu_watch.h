// CpuWatch: a thread that looks ten times a second whether the maker's thread gets its CPU, and has
// compute threads wait shortly (short_waits.h) while it does not: other jobs on this machine,
// optimizer workers, or anything else that computes.
//
// The thread that computes makes and ends it; shared() from any thread.
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
  // Null where there is nothing to watch: one compute thread waits for nobody; or where waits
  // cannot be made short, or are the user's. `clock` outlives the watch.
  static std::unique_ptr<CpuWatch> Start(uint32_t compute_threads, const Clock* clock);
  ~CpuWatch();
  CpuWatch(const CpuWatch&) = delete;
  CpuWatch& operator=(const CpuWatch&) = delete;

  // Whether waits are short at this moment.
  bool shared() const { return shared_; }

 private:
  CpuWatch(UniqueFd end, pid_t watched, const Clock* clock);
  void Look();
  const UniqueFd end_;  // readable when the thread is to end
  const pid_t watched_;
  const Clock* const clock_;
  std::atomic<bool> shared_ = false;
  std::thread thread_;
};

}  // namespace tidepool::trainer
