// PipelineSetup: what a pipeline between rCache blocks and memory server works with, and the types
// of its interface.
//
// Value types; one thread (the trainer's main thread).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "client/chunk_service.h"
#include "trainer/cache/cache_streams.h"
#include "trainer/comm/collective.h"
#include "trainer/layout/chunk_layout.h"

namespace tidepool::trainer {

using OpId = uint64_t;  // a transfer, from 1, consecutive; 0 stands for one that ended long ago
// The point behind an operator in the compute stream, as the pipeline's Used gave it; 0: no use.
using UseMark = uint64_t;

// What happened to a block before.
struct BlockPast {
  OpId op = 0;      // the transfer that used it last
  UseMark use = 0;  // the last operator that was released since
};

// Which parameters a block gets, and how many moments of the pass come before the one that needs
// them (client/chunk_service.h).
using client::Wanted;

// Tickets of the service that the pipeline uses; it leaves some to the trainer itself (end of step,
// weights).
inline constexpr uint32_t kTicketsUsed = client::kTicketsMax - 32;

struct PipelineSetup {  // all must outlive the pipeline
  const ChunkLayout* layout = nullptr;
  Rank rank = 0;
  client::ChunkService* service = nullptr;
  // By data group; null where this rank is no member or the group has one rank.
  std::vector<Collective*> groups;
  Clock* clock = nullptr;
  CacheStreams streams = {};

  // The group that shares the chunk; null where this rank has it alone.
  Collective* GroupOf(ChunkId chunk) const { return groups[layout->chunks[chunk].data_group]; }
  // This rank's shard of the chunk that lies in `block`.
  client::Range ShardRange(ChunkId chunk, const std::byte* block) const;
  BlockView View(ChunkId chunk, std::byte* block) const {
    return {block, layout->ShardElements(chunk), layout->chunks[chunk].dtype};
  }
};

}  // namespace tidepool::trainer
