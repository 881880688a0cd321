// AccessSchedule: the order in which one pass (a training step with all its micro-batches, or one
// evaluation) needs chunks, and what follows from that order alone: next uses, and the smallest
// rCache that it can run in.
//
// Any thread; a value. A moment's number is its position in the list. All decisions of the rCache
// are functions of the list.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "trainer/layout/chunk_layout.h"

namespace tidepool::trainer {

// The kinds of moments.
enum class MomentKind : uint8_t {
  kUse,  // an operator starts: all of `chunks` must be present and stay until it ends
  // The first gradient of `subject` overwrites its parameter: must be present, and is pinned until
  // its kSubmit.
  kGradient,
  // `subject` needs a block for gradients only: nothing is fetched; pinned until its kSubmit.
  kBorrow,
  // The gradients of `subject` go to reduce-scatter and server: its block is then free and holds no
  // parameters.
  kSubmit,
};

// One moment of the pass.
struct Moment {
  MomentKind kind = MomentKind::kUse;
  ChunkId subject = 0;  // for kGradient, kBorrow and kSubmit
  // Chunks that operators hold at this moment; ascending. kGradient, kBorrow, kSubmit: nearly
  // always none.
  std::vector<ChunkId> chunks;
  friend bool operator==(const Moment&, const Moment&) = default;
};

struct AccessSchedule {
  std::vector<Moment> moments;
  friend bool operator==(const AccessSchedule&, const AccessSchedule&) = default;
};

inline constexpr uint64_t kNeverUsed = UINT64_MAX;

// For each chunk, the moments at which its parameters are needed again while its block still holds
// them. A use after the chunk's own kSubmit or kBorrow does not count, because the block then holds
// gradients.
class NextUses {
 public:
  NextUses(const AccessSchedule& schedule, uint32_t chunk_count);
  // The next moment after `position` that needs the chunk; kNeverUsed if none.
  uint64_t After(ChunkId chunk, uint64_t position) const;
  // The first moment that needs the chunk in a later pass of the same order; kNeverUsed if none.
  uint64_t First(ChunkId chunk) const;
  // The last moment before `position` that needed the chunk, plus one; 0 if none.
  uint64_t EndOfUseBefore(ChunkId chunk, uint64_t position) const;

 private:
  struct Event {
    uint64_t position;
    bool needed;  // false: the block holds no parameters from here on
  };
  std::vector<std::vector<Event>> events_;  // by ChunkId
};

// The blocks in use at each moment under any policy: those of the operator's chunks and of
// gradients. `evictable[c]` says whether chunk c needs a block at all.
std::vector<uint64_t> BlocksNeeded(const AccessSchedule& schedule,
                                   const std::vector<bool>& evictable);
// Their maximum: the smallest rCache (in blocks) in which the schedule runs.
uint64_t SmallestRcache(const AccessSchedule& schedule, const std::vector<bool>& evictable);

// Chunks by first use: the order in which the next step's forward needs the updates.
std::vector<ChunkId> FirstUseOrder(const AccessSchedule& schedule);

// evictable[c] for all chunks of a layout.
std::vector<bool> EvictableMask(const ChunkLayout& layout);

}  // namespace tidepool::trainer
