// GpuStates: the chunks of a job whose states lie in memory of its ranks' GPUs: which GPU has
// which, how they lie there, and how many bytes that takes: one sum, term by term, used by
// admission and by `trainer estimate`.
//
// Pure functions, any thread. JobSpec::states_on_gpu says how many of the first chunks do; behind
// them chunks have their states on the host, and the last ones on NVMe. What lies there: fp32
// master (of 16-bit jobs; of fp32 jobs a copy of it stays in the pool, which is what trainers
// fetch), momentum and variance of Adam or AdamW. What stays in the pool is what a spilled chunk
// leaves there (shm/spec/state_footprint.h). The memory is the server's, one allocation for each
// rank that has some: its *share*. Chunk c belongs to the share of rank c % world:
//   for each chunk of the share   slot of even epochs | slot of odd epochs,
//                                 each: master | momentum | variance
//   then                          kGpuUnitsInFlight times: gradients of a unit | its 16-bit copies
// Every plane starts at a multiple of 256 bytes; the whole is rounded up to 2 MiB, which is how
// GPUs give memory out.
#pragma once

#include <cstdint>

#include "base/units.h"
#include "shm/spec/job_spec.h"

namespace tidepool::shm {

inline constexpr uint64_t kGpuPlaneAlignment = 256;
inline constexpr uint64_t kGpuMemoryUnit = 2 * kMiB;
// The largest unit of work on a stream: so many elements of one chunk, in a few operations; and how
// many units are in flight.
inline constexpr uint64_t kGpuUnitElements = uint64_t{1} << 22;
inline constexpr uint32_t kGpuUnitsInFlight = 2;

// Offsets of the planes of a slot; the master is at 0.
struct GpuSlot {
  uint64_t momentum = 0, variance = 0, bytes = 0;
};
// The slot of a chunk, which must be on a GPU.
GpuSlot GpuSlotOf(const JobSpec& spec, ChunkId chunk);
// One staging place, for a unit: gradients, then 16-bit copies (of 16-bit jobs).
struct GpuStaging {
  uint64_t elements = 0, copies = 0, bytes = 0;
};
// The staging of a rank's share: room for its largest unit.
GpuStaging GpuStagingOf(const JobSpec& spec, Rank rank);

// Whether the chunk's states are on a GPU, and in whose share they are then.
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

// The rule for states on GPUs alone. Errors: kJobSpecBad.
Status CheckGpuStates(const JobSpec& spec);

}  // namespace tidepool::shm
