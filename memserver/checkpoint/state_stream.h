// WriteStream: writes all states of a job into memory that a process of its user empties
// (shm/state_stream.h). memserver opens, writes and closes no file for it.
//
// One thread (one that reads for a save); blocks as long as the reader is slow, but never longer
// than kStreamStuckNs without a piece taken. The loop keeps every chunk as it is until StreamGate
// says that it was copied; one whose states lie off the host, in two slots, from its second update
// on.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "memserver/residency/job_states.h"
#include "memserver/traffic/gpu_states.h"
#include "memserver/traffic/spill_reader.h"
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
  const JobStates* states = nullptr;              // saved(), the specification and the planes alone
  std::shared_ptr<SpillReader> spilled = {};      // where some are on NVMe
  std::shared_ptr<GpuStatesReader> on_gpus = {};  // where some are on GPUs
  std::vector<ChunkId> order;                     // all chunks, as they are updated next
  StepRecord step{};                              // whose states they are
  std::shared_ptr<StreamGate> gate;
  std::function<void()> opened;  // called for each chunk that was copied
  // Set by the loop when the rank that asked is gone: a reader that has not come by then hardly
  // comes any more.
  std::shared_ptr<std::atomic<bool>> asker_gone = std::make_shared<std::atomic<bool>>(false);
};

// Errors: kSaveFailed (the reader is gone, is stuck, or lies; the daemon ends), and those of
// SpillReader and GpuStatesReader. The reader is told.
Status WriteStream(const StreamTask& task, const Clock& clock, const std::atomic<bool>& stop,
                   int64_t stuck_ns);

}  // namespace tidepool::memserver
