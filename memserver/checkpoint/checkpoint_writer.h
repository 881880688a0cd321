// CheckpointWriter: the threads that write saved weights to disk, so that the serve loop never
// waits for one.
//
// The loop pushes SaveRequest into one queue and takes SaveResult from the other. Nothing else is
// shared except the planes named in a request, which the loop leaves unchanged until the result.
// Each save begins at once, on a thread of its own that reads for it (apart_save.h): the loop
// bounds their number (save_lanes.h), and a thread that does not return from the kernel holds up no
// other. Each save has a deadline counted from its beginning and checked between two writes. Every
// request is answered exactly once, shortly after its deadline at the latest, even when the writer
// is destroyed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
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
  // Time after the deadline for a write to return.
  static constexpr int64_t kGraceNs = kNsPerSecond;
  static constexpr int64_t kSaveTimeoutNs = 600 * kNsPerSecond;  // 30 GiB at 50 MB/s

  // The queues and the clock must outlive the writer; this object is the only consumer of
  // `requests`.
  CheckpointWriter(EventQueue<SaveRequest>* requests, EventQueue<SaveResult>* results,
                   const Clock* clock, int64_t timeout_ns = kSaveTimeoutNs);
  // Gives up saves in progress at their next piece of 4 MiB, answers all others with kSaveFailed,
  // and ends the threads.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

 private:
  struct Running {
    std::thread thread;
    std::atomic<bool> ended{false};
  };
  void Main();
  void BeginAll(std::vector<SaveRequest>* batch);
  void Serve(SaveRequest request);
  void Stream(SaveRequest request);
  void StreamSteps(SaveRequest request);
  void Answer(ConnectionId connection, const std::string& file, Status status);
  static void Ring(const UniqueFd& event);

  EventQueue<SaveRequest>* const requests_;
  EventQueue<SaveResult>* const results_;
  const Clock* const clock_;
  const int64_t timeout_ns_;
  std::atomic<bool> stop_{false};
  UniqueFd woken_;  // readable once stop_ is set, or a save has ended
  std::vector<std::unique_ptr<Running>> running_;
  std::thread thread_;
};

}  // namespace tidepool::memserver
