// WeightWindows: which 16-bit weights of a job are on NVMe alone, and what the window costs through
// which they come to the host (decision 027).
//
// Pure functions, any thread. They answer from the sums of a description, in blocks of chunks.
#pragma once

#include <cstdint>

#include "base/ids.h"
#include "shm/spec/job_spec.h"
#include "shm/spec/spec_sums.h"

namespace tidepool::shm {

// As a first spilled chunk: nothing spills.
inline constexpr ChunkId kNoSpill = ~ChunkId{0};
// The chunks whose 16-bit weights are on the host only in a window: those from `first` on, whose
// states are on NVMe. An area has room for the fp32 weights of the largest of them, which land
// there when they are put; later it is two slots, each for the 16-bit weights of one chunk.
struct WeightSpill {
  ChunkId first = kNoSpill;
  uint32_t areas = 0;  // fewer than the chunks from `first` on would fill

  bool any() const { return areas > 0; }
  friend bool operator==(const WeightSpill&, const WeightSpill&) = default;
};

// The window sums of a job with 16-bit weights and this many chunks, from SpecSums::weights.
WindowSums MakeWindows(const SpecSums& sums, uint64_t chunks);
// WeightSlotBytes (shm/spec/state_footprint.h) from the sums. Requires that `spec` has them.
uint64_t SlotBytesFromSums(const JobSpec& spec, ChunkId first);
// WeightsSpilledFor from the sums, for a job that takes `missing` bytes more than the pool has
// while no weights spill; none spill of chunks before `from`. Requires that `spec` has its sums.
WeightSpill WindowFromSums(const JobSpec& spec, ChunkId from, uint64_t missing);

}  // namespace tidepool::shm
