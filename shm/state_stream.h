// StateStream: exports all states of a job from memserver, or the gradients of its steps: memory
// that the server makes, with a ring of slots that the server's reading thread fills and a process
// of the job's user empties.
//
// One thread on each side. The server trusts nothing that it reads here: a `taken` that runs back
// or ahead ends the stream. Pieces come chunk by chunk, in the order of the next update; the pieces
// of one plane of a parameter come in order, from its first element on.
//
// A stream of steps goes on until its rank has left: of each sealed step the gradients, chunk by
// chunk, then its record (LoggedStep of base/checkpoint/step_log.h). A skipped step has its record
// alone.
//
//   page 0            StreamHead, then StreamPiece of each slot
//   kStreamDataAt     slot after slot, kStreamSlotBytes each
//
// The words: `given` counts filled pieces, `taken` emptied ones; both only grow, and each side
// sleeps on the other's (base/system/futex.h).
#pragma once

#include <atomic>
#include <cstdint>

#include "base/units.h"

namespace tidepool::shm {

inline constexpr uint32_t kStreamMagic = 0x54535054;  // "TPST"
inline constexpr uint32_t kStreamSlots = 4;
inline constexpr uint64_t kStreamSlotBytes = 4 * kMiB;
inline constexpr uint64_t kStreamDataAt = 4 * kKiB;
inline constexpr uint64_t kStreamBytes = kStreamDataAt + kStreamSlots * kStreamSlotBytes;
// A side that waits this long for the other gives the stream up.
inline constexpr int64_t kStreamStuckNs = 10'000'000'000;

// The state of a stream, as set by the server.
enum class StreamEnd : uint32_t { kRuns = 0, kWhole = 1, kFailed = 2 };

// Planes of a stream of steps, beside those of puts. A piece of gradients holds whole or partial
// gradients of consecutive parameters of a chunk, in the type of its slot, without padding.
inline constexpr uint32_t kStreamGradients = 16, kStreamStep = 17;

// Describes the content of a slot.
struct StreamPiece {
  uint32_t parameter = 0;  // ParameterId of the job's description
  // kPutMaster (fp32); kPutMomentum, kPutVariance (in their own type; 8-bit moments as codes);
  // kPutMomentumScales, kPutVarianceScales (fp32, one per block).
  uint32_t plane = 0;
  uint64_t first = 0;  // element of the parameter; of scales: block; of gradients: byte
  uint64_t bytes = 0;
};

// The step of the states, or the version that the first step follows, is written before the first
// piece.
struct StreamHead {
  uint32_t magic = 0;
  uint32_t moment_bytes = 0;  // of one element of a moment: 4 fp32, 2 bf16
  uint64_t version = 0, optimizer_step = 0, data_cursor = 0, random_state = 0;
  float loss_scale = 1;
  uint32_t scaler_steps = 0;
  uint32_t pieces = 0;             // total, written before the end
  std::atomic<uint32_t> given{0};  // also grows by one with the end
  std::atomic<uint32_t> end{0};    // a StreamEnd
  std::atomic<uint32_t> taken{0};
  std::atomic<uint32_t> left{0};  // the reader has given up
  std::atomic<uint32_t> here{0};  // the reader has attached
  // Written by the process that logs steps, for the trainer: a power cut leaves the steps up to
  // `safe`, with the checkpoint that they follow. `safe_changes` counts its changes.
  std::atomic<uint32_t> safe_changes{0};
  std::atomic<uint64_t> safe{0};
};
static_assert(sizeof(StreamHead) + kStreamSlots * sizeof(StreamPiece) <= kStreamDataAt);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// The head of mapped memory.
inline StreamHead* HeadOf(std::byte* memory) {
  return reinterpret_cast<StreamHead*>(memory);
}
// The description of the n-th piece's slot.
inline StreamPiece* PieceOf(std::byte* memory, uint32_t number) {
  return reinterpret_cast<StreamPiece*>(memory + sizeof(StreamHead)) + number % kStreamSlots;
}
// The bytes of that slot.
inline std::byte* SlotOf(std::byte* memory, uint32_t number) {
  return memory + kStreamDataAt + number % kStreamSlots * kStreamSlotBytes;
}

}  // namespace tidepool::shm
