// CheckpointWriter: the thread that writes saved weights to disk, so that the serve loop never waits for one.
//
// The loop pushes SaveRequest into one queue and takes SaveResult from the other; nothing else is shared but the planes named in a
// request, which the loop leaves unchanged until the result. Requests are served one at a time, in order, each with a deadline counted
// from its beginning and looked at between two writes. One that the kernel does not return from holds up those that come after it until
// shortly behind its deadline (apart_save.h). Every request is answered exactly once, also those that are still queued when the writer is
// destroyed.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/event_queue.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "memserver/checkpoint/save_request.h"

namespace tidepool::memserver {

class CheckpointWriter {
 public:
  static constexpr int64_t kGraceNs = kNsPerSecond;              // behind the deadline, for a write to come back
  static constexpr int64_t kSaveTimeoutNs = 600 * kNsPerSecond;  // 30 GiB at 50 MB/s

  // The queues and the clock must outlive the writer; this object is the only consumer of `requests`.
  CheckpointWriter(EventQueue<SaveRequest>* requests, EventQueue<SaveResult>* results, const Clock* clock,
                   int64_t timeout_ns = kSaveTimeoutNs);
  // Gives a save in progress up at its next piece of 4 MiB, answers all others with kSaveFailed, ends the thread.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

 private:
  void Main();
  void ServeAll(std::vector<SaveRequest>* batch);

  EventQueue<SaveRequest>* const requests_;
  EventQueue<SaveResult>* const results_;
  const Clock* const clock_;
  const int64_t timeout_ns_;
  std::atomic<bool> stop_{false};
  UniqueFd stop_event_;  // readable once stop_ is set
  std::thread thread_;
};

}  // namespace tidepool::memserver
