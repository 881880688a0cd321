// EstimateMemory: a model's memory in each tier, computed from its layout alone; no weight is made.
//
// Any thread; pure. The sums equal those of the server's admission (a test compares them); the
// server adds its records and, with accumulation or a split master, a staging buffer per rank, all
// small.
// Sources: Elixir v2, section 4.2 (bytes per parameter); PatrickStar, section 6.1 (14 bytes for
// 16-bit training).
#pragma once

#include <cstdint>

#include "base/ids.h"
#include "base/formats/optimizer.h"
#include "trainer/layout/chunk_layout.h"

namespace tidepool::trainer {

// Bytes by tier.
struct MemoryEstimate {
  // Host pool, for the whole job. In the form of the states; 0 for a moment that the rule lacks.
  uint64_t master = 0, momentum = 0, variance = 0;
  uint64_t param16 = 0;                 // 16-bit chunks only: the copy that is fetched
  uint64_t gradient = 0;                // fp32, or the chunk's type without accumulation
  uint64_t pool_bytes = 0;              // their sum
  double pool_bytes_per_parameter = 0;  // per trained parameter
  // Frozen chunks, not in pool_bytes: the pool holds them once for all jobs of the user that list
  // them.
  uint64_t frozen = 0;
  // rCache per rank, in bytes; the maximum over the ranks.
  uint64_t rcache_bytes = 0;
  uint64_t resident_bytes = 0;  // of rcache_bytes, always occupied
  uint64_t block_bytes = 0;     // of one block
  uint64_t blocks = 0;
  double resident_share = 0;   // of all parameter bytes
  double evictable_share = 0;  // fraction of the evictable chunks that the blocks hold at once
  // Memory beside the rCache while ranks exchange blocks, in bytes per rank; the maximum over the
  // ranks. Ranks of one machine need none.
  uint64_t parts_bytes = 0;  // over several machines: buffers of reduce-scatters
  // If GPUs exchange through host memory: blocks in flight, in addition to parts_bytes.
  uint64_t staging_bytes = 0;
  // The model.
  uint64_t parameters = 0;
  uint64_t trained_parameters = 0;  // of `parameters`
  uint64_t padding_bytes = 0;       // of one copy of the parameters
};

// The properties of a run that the sums depend on.
struct EstimateOptions {
  uint32_t micro_batches = 1;  // more than one: gradients are accumulated in fp32
  uint64_t rcache_bytes = 0;   // per rank
  OptimizerSpec optimizer = {};
  // The most buffers of a data group (trainer/comm/operation_thread.h,
  // trainer/comm/staged_collective.h).
  uint32_t parts_at_once = 0, staged_at_once = 0;
};

MemoryEstimate EstimateMemory(const ChunkLayout& layout, const EstimateOptions& options);

}  // namespace tidepool::trainer
