// WriteStream: all states of a job into the memory that a process of its user empties
// (shm/state_stream.h). memserver opens, writes and closes no file for it.
//
// One thread (one that reads for a save); blocks as long as the reader is slow, but never longer
// than kStreamStuckNs without a piece taken. The loop keeps every chunk as it is until Gate says
// that it was copied.
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
  // The update of the chunk may begin.
  bool IsOpen(ChunkId chunk) const { return open_[chunk].load(std::memory_order_acquire); }
  void Open(ChunkId chunk) { open_[chunk].store(true, std::memory_order_release); }

 private:
  std::vector<std::atomic<bool>> open_;
};

// What is copied, and who is told.
struct StreamTask {
  std::shared_ptr<shm::Segment> memory;
  const JobStates* states = nullptr;  // saved(), the specification and the planes alone
  std::vector<ChunkId> order;         // all chunks, as they are updated next
  StepRecord step{};                  // whose states they are
  std::shared_ptr<StreamGate> gate;
  std::function<void()> opened;  // told of each chunk that was copied
};

// Errors: kSaveFailed (the reader is gone, is stuck, or lies; the daemon ends). The reader is told.
Status WriteStream(const StreamTask& task, const Clock& clock, const std::atomic<bool>& stop,
                   int64_t stuck_ns);

}  // namespace tidepool::memserver
