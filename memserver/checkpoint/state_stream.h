// WriteStream: writes all states of a job into memory that a process of its user empties
// (shm/state_stream.h). memserver opens, writes and closes no file for it.
//
// One thread (one that reads for a save); blocks as long as the reader is slow, but never longer
// than kStreamStuckNs without a piece being taken. The loop keeps every chunk unchanged until
// StreamGate says that it was copied. A chunk off the host has two slots, so only its second update
// waits for the gate.
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
  const JobStates* states = nullptr;              // uses saved(), specification, planes
  std::shared_ptr<SpillReader> spilled = {};      // null: no states on NVMe
  std::shared_ptr<GpuStatesReader> on_gpus = {};  // null: no states on GPUs
  std::vector<ChunkId> order;                     // all chunks, in the order of their next updates
  StepRecord step{};                              // the step of these states
  std::shared_ptr<StreamGate> gate;
  std::function<void()> opened;  // called for each chunk that was copied
  // Set by the loop when the rank that asked is gone. If the reader has not attached by then, the
  // stream soon fails.
  std::shared_ptr<std::atomic<bool>> asker_gone = std::make_shared<std::atomic<bool>>(false);
  bool asker_reads =
      false;  // a process that is no rank asked, and reads: without it the stream ends
};

// Streams the states, and reports the end to the reader. Errors: kSaveFailed (the reader is gone,
// stuck or lies; the daemon ends), and those of SpillReader and GpuStatesReader.
Status WriteStream(const StreamTask& task, const Clock& clock, const std::atomic<bool>& stop,
                   int64_t stuck_ns);

}  // namespace tidepool::memserver
