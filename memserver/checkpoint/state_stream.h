// WriteStream: writes all states of a job into memory that a process of its user empties
// (shm/state_stream.h). memserver opens, writes and closes no file for it.
//
// One thread (one that reads for a save); blocks as long as the reader is slow, but never longer
// than kStreamStuckNs without a piece being taken. The loop keeps every chunk unchanged until the
// gate says that it was copied.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "memserver/residency/job_states.h"
#include "shm/segment.h"

namespace tidepool::memserver {

// Which chunks of a stream were copied: written by the reading thread, read by the serve loop.
class StreamGate {
 public:
  explicit StreamGate(size_t chunks) : open_(chunks) {}
  // True if the update of the chunk may begin.
  bool IsOpen(ChunkId chunk) const { return open_[chunk].load(std::memory_order_acquire); }
  void Open(ChunkId chunk) { open_[chunk].store(true, std::memory_order_release); }

 private:
  std::vector<std::atomic<bool>> open_;
};

// What is copied, and the notification.
struct StreamTask {
  std::shared_ptr<shm::Segment> memory;
  const JobStates* states = nullptr;  // uses only saved(), the specification and the planes
  std::vector<ChunkId> order;         // all chunks, in the order of their next updates
  StepRecord step{};                  // the step of these states
  std::shared_ptr<StreamGate> gate;
  std::function<void()> opened;  // called for each chunk that was copied
};

// Streams the states. Errors: kSaveFailed (the reader is gone, stuck or lies; the daemon ends).
Status WriteStream(const StreamTask& task, const Clock& clock, const std::atomic<bool>& stop,
                   int64_t stuck_ns);

}  // namespace tidepool::memserver
