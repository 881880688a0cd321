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
#include "base/status.h"
#include "client/chunk_service.h"
#include "trainer/cache/cache_streams.h"
#include "trainer/comm/collective.h"
#include "trainer/layout/chunk_layout.h"
#include "trainer/plan/traffic.h"

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
  uint64_t tail_bytes = 0;  // at the end of the rCache, which somebody else uses
  Exchange exchange = Exchange::kSharded;

  // The group that shares the chunk; null where this rank has it alone.
  Collective* GroupOf(ChunkId chunk) const { return groups[layout->chunks[chunk].data_group]; }
  // This rank's shard of the chunk that lies in `block`.
  client::Range ShardRange(ChunkId chunk, const std::byte* block) const;
  // What a fetch brings: that shard, or the whole chunk.
  client::Range FetchRange(ChunkId chunk, const std::byte* block) const;
  // Whether a fetch, or a submission, is followed, or preceded, by an operation of the group.
  bool Gathers(ChunkId chunk) const {
    return exchange == Exchange::kSharded && layout->ShardCount(chunk) > 1;
  }
  bool Reduces(ChunkId chunk) const { return layout->ShardCount(chunk) > 1; }
  // Whether every rank gets the whole sum of the gradients.
  bool AllReduces(ChunkId chunk) const {
    return exchange == Exchange::kReplicated && layout->ShardCount(chunk) > 1;
  }
  BlockView View(std::byte* block, const OperationName& name) const {
    return {block, layout->ShardElements(name.chunk), layout->chunks[name.chunk].dtype, name};
  }
  // The groups compare what they started. Errors: kCollectiveFailed.
  Status CompareOrders() const;
};

// Names the operations of a pipeline, in the order of the requests, which is that of each data
// group's other ranks too.
class PassNames {
 public:
  // The layout must outlive this object and its names.
  explicit PassNames(const ChunkLayout* layout)
      : layout_(layout), places_(layout->data_groups.size(), 0) {}

  // Places count from 1 again.
  void BeginPass() { places_.assign(places_.size(), 0); }
  // The name of the next operation on the chunk, with its first parameter.
  OperationName Next(ChunkId chunk);

 private:
  const ChunkLayout* layout_;
  std::vector<uint32_t> places_;  // by data group: of its last operation
};

}  // namespace tidepool::trainer
