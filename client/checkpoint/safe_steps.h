// SafeSteps: how far a log of steps is safe, as the process that writes it says in the memory of
// its stream (shm/state_stream.h).
//
// One thread. It only reads the memory, which the trainer shares with that process.
#pragma once

#include <cstdint>
#include <memory>

#include "base/ids.h"
#include "base/status.h"
#include "shm/segment.h"

namespace tidepool::client {

class SafeSteps {
 public:
  // `memory`: the descriptor of ChunkService::StreamSteps, which the caller keeps. Errors: those of
  // shm::Segment::Map, kMemoryMapFailed.
  static Result<SafeSteps> Of(int memory);

  // A power cut leaves the steps up to this version; 0: none yet, because the checkpoint that they
  // follow is not whole.
  Version version() const;
  // Waits until version() has changed since it was `seen`, at most `wait_ns`.
  void AwaitChange(Version seen, int64_t wait_ns) const;

 private:
  explicit SafeSteps(std::unique_ptr<const shm::Segment> memory) : memory_(std::move(memory)) {}
  std::unique_ptr<const shm::Segment> memory_;
};

}  // namespace tidepool::client
