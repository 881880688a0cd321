// GpuStates: the chunks of a job whose states lie in the memory of its ranks' GPUs: which GPU has
// which, their layout there, and the bytes that they take: one sum, term by term, used by admission
// and by `trainer estimate`.
//
// Pure functions, any thread. JobSpec::states_on_gpu is the number of leading chunks on GPUs; the
// chunks behind them have their states on the host, and the last ones on NVMe. On a GPU lie: the
// fp32 master (in 16-bit jobs; in fp32 jobs a copy of it, which trainers fetch, stays in the pool),
// momentum and variance of Adam or AdamW. In the pool remains what a spilled chunk leaves there
// (shm/spec/state_footprint.h). The memory is the server's, one allocation for each rank that has
// some: its *share*. Chunk c belongs to the share of rank c % world:
//   for each chunk of the share   slot of even epochs | slot of odd epochs,
//                                 each: master | momentum | variance
//   then                          kGpuUnitsInFlight times: gradients of a unit | its 16-bit copies
// Every plane starts at a multiple of 256 bytes; the total is rounded up to 2 MiB, the granularity
// of GPU allocations.
#pragma once

#include <cstdint>

#include "base/units.h"
#include "shm/spec/job_spec.h"

namespace tidepool::shm {

inline constexpr uint64_t kGpuPlaneAlignment = 256;
inline constexpr uint64_t kGpuMemoryUnit = 2 * kMiB;
// The largest unit of work on a stream: this many elements of one chunk, in a few operations; and
// the number of units in flight.
inline constexpr uint64_t kGpuUnitElements = uint64_t{1} << 22;
inline constexpr uint32_t kGpuUnitsInFlight = 2;

// Offsets of the planes of a slot; the master is at 0.
struct GpuSlot {
  uint64_t momentum = 0, variance = 0, bytes = 0;
};
// The slot of a chunk, which must be on a GPU.
GpuSlot GpuSlotOf(const JobSpec& spec, ChunkId chunk);
// The staging slot of a unit: gradients, then 16-bit copies (of 16-bit jobs).
struct GpuStaging {
  uint64_t elements = 0, copies = 0, bytes = 0;
};
// The staging of a rank's share: room for its largest unit.
GpuStaging GpuStagingOf(const JobSpec& spec, Rank rank);

// True if the chunk's states are on a GPU; and the rank in whose share they are.
inline bool IsOnGpu(const JobSpec& spec, ChunkId chunk) {
  return chunk < spec.states_on_gpu;
}
inline Rank GpuShareOf(const JobSpec& spec, ChunkId chunk) {
  return chunk % spec.world;
}
// Bytes of a rank's share; 0: it has none.
uint64_t GpuShareBytes(const JobSpec& spec, Rank rank);
// Bytes of all shares.
uint64_t GpuStateBytes(const JobSpec& spec);

// Checks the rule for states on GPUs alone. Errors: kJobSpecBad.
Status CheckGpuStates(const JobSpec& spec);

}  // namespace tidepool::shm
