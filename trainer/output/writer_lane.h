// WriterLane: a thread that runs jobs in order for its owner, who can wait for them with a limit:
// for writes to a file system that may stall.
//
// One thread owns it. Jobs own the data they use: if one never ends, the thread is abandoned with
// it, and jobs queued after it never run.
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

  // At most `jobs_max` jobs are queued or running. `clock` outlives the lane.
  WriterLane(size_t jobs_max, const Clock* clock);
  // Waits at most `kEndNs` for queued jobs.
  ~WriterLane();
  WriterLane(const WriterLane&) = delete;
  WriterLane& operator=(const WriterLane&) = delete;

  // Never blocks. False: the queue is full, and the job is not taken.
  bool Push(Job job);
  // True when all accepted jobs are done.
  bool idle() const;
  // Waits until it is idle; false after `timeout_ns`.
  bool AwaitIdle(int64_t timeout_ns);
  // The error of the first failed job; later jobs are not run. Call it when idle.
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
