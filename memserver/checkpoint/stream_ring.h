// StreamRing: the server's side of the memory through which states or steps leave it
// (shm/state_stream.h): waits for a slot, gives it to the reader, and reports the end.
//
// One thread, which reads for a checkpoint or a log; blocks until the reader has emptied a slot,
// but never longer than `stuck_ns` without a piece being taken.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "base/status.h"
#include "shm/state_stream.h"

namespace tidepool::memserver {

class StreamRing {
 public:
  struct Parts {
    std::byte* memory = nullptr;  // kStreamBytes
    const Clock* clock = nullptr;
    const std::atomic<bool>* stop = nullptr;        // the daemon ends
    const std::atomic<bool>* asker_gone = nullptr;  // the rank that asked has left
    bool asker_reads = false;                       // who asked is the reader, and no rank
    int64_t stuck_ns = shm::kStreamStuckNs;
    const char* what = "a checkpoint";  // for messages
  };
  explicit StreamRing(Parts parts) : parts_(parts), head_(shm::HeadOf(parts.memory)) {}

  // Waits until the reader has emptied the next slot; then slot() may be filled. Errors:
  // kSaveFailed (the reader is gone, stuck or lies; nobody comes to read; the daemon ends).
  Status AwaitSlot();
  std::byte* slot() { return shm::SlotOf(parts_.memory, given_); }
  // Gives the slot to the reader.
  void Give(const shm::StreamPiece& piece);
  // Does not wait. Errors: kSaveFailed, as AwaitSlot.
  Status Check();
  void End(shm::StreamEnd end);

 private:
  Status LookAtReader();
  bool NobodyComes();
  Status Failed(const char* why) const;

  const Parts parts_;
  shm::StreamHead* const head_;
  uint32_t given_ = 0, taken_ = 0;
  int64_t gone_ns_ = 0;  // when the loss of the rank was first seen; 0: not yet
};

}  // namespace tidepool::memserver
