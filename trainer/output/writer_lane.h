// WriterLane: a thread that does one job after the other for its owner, who waits for them as long
// without limit: for writes to a file system that may stand still.
//
// One thread owns it. Jobs own what they use: where one never ends, the thread is left behind with
// it, and what was queued behind it is not done any more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/clock.h"
#include "base/status.h"

namespace tidepool::trainer {

class WriterLane {
 public:
  using Job = std::function<Status()>;

  // At most `jobs_max` jobs wait, or are in work. `clock` outlives the lane.
  WriterLane(size_t jobs_max, const Clock* clock);
  // Waits `kEndNs` at most for what is queued.
  ~WriterLane();
  WriterLane(const WriterLane&) = delete;
  WriterLane& operator=(const WriterLane&) = delete;

  // Never waits. False: so many jobs wait that this one is not taken.
  bool Push(Job job);
  // Every job that was taken is done.
  bool idle() const;
  // Waits until it is idle; false after `timeout_ns`.
  bool AwaitIdle(int64_t timeout_ns);
  // Why the first job failed; the jobs behind it are not done. To be asked when it is idle.
  Status failure() const;

 private:
  struct Shared;
  static void Run(const std::shared_ptr<Shared>& shared);

  const size_t jobs_max_;
  const Clock* const clock_;
  uint64_t pushed_ = 0;
  std::shared_ptr<Shared> shared_;
};

}  // namespace tidepool::trainer
