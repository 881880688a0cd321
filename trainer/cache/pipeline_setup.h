// PipelineSetup: the inputs of a pipeline between rCache blocks and memory server, and the types of
// its interface.
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

using OpId = uint64_t;  // a transfer, from 1, consecutive; 0: one that ended long ago
// The point after an operator in the compute stream, from the pipeline's Mark; 0: no use.
using UseMark = uint64_t;

// The last uses of a block.
struct BlockPast {
  OpId op = 0;      // the last transfer
  UseMark use = 0;  // the last operator released since
};

// The version that a block gets, and how many moments of the pass precede its use
// (client/chunk_service.h).
using client::Wanted;

// The service's tickets for the pipeline; the rest is for the trainer itself (end of step,
// weights).
inline constexpr uint32_t kTicketsUsed = client::kTicketsMax - 32;

struct PipelineSetup {  // all must outlive the pipeline
  const ChunkLayout* layout = nullptr;
  Rank rank = 0;
  client::ChunkService* service = nullptr;
  // By data group; null where this rank is not a member or the group has one rank.
  std::vector<Collective*> groups;
  Clock* clock = nullptr;
  CacheStreams streams = {};
  uint64_t tail_bytes = 0;  // at the end of the rCache, used by others
  Exchange exchange = Exchange::kSharded;
  bool f32_sums = false;  // submit gradients as fp32, whatever the chunk's dtype

  // The group that shares the chunk; null if this rank has it alone.
  Collective* GroupOf(ChunkId chunk) const { return groups[layout->chunks[chunk].data_group]; }
  // This rank's shard of the chunk in `block`.
  client::Range ShardRange(ChunkId chunk, const std::byte* block) const;
  // The range of a fetch: that shard, or the whole chunk.
  client::Range FetchRange(ChunkId chunk, const std::byte* block) const;
  // The range of a submission: this rank's shard of the gradients in `block`.
  client::Range SubmitRange(ChunkId chunk, const std::byte* block) const;
  // Whether a fetch is followed (below: a submission is preceded) by an operation of the group.
  bool Gathers(ChunkId chunk) const {
    return exchange == Exchange::kSharded && layout->ShardCount(chunk) > 1;
  }
  bool Reduces(ChunkId chunk) const { return layout->ShardCount(chunk) > 1; }
  // Whether every rank gets the full sum of the gradients.
  bool AllReduces(ChunkId chunk) const {
    return exchange == Exchange::kReplicated && layout->ShardCount(chunk) > 1;
  }
  BlockView View(std::byte* block, const OperationName& name) const {
    return {block, layout->ShardElements(name.chunk), layout->chunks[name.chunk].dtype, name};
  }
  // As View, for gradients in `block`.
  BlockView SubmitView(std::byte* block, const OperationName& name) const {
    return {block, layout->ShardElements(name.chunk), SubmitType(name.chunk), name};
  }
  // The element type of a chunk's submitted gradients.
  DType SubmitType(ChunkId chunk) const {
    return f32_sums ? DType::kF32 : layout->chunks[chunk].dtype;
  }
  // The groups compare their orders of operations. Errors: kCollectiveFailed.
  Status CompareOrders() const;
};

// Names a pipeline's operations in request order, which is equal on all ranks of a data group.
class PassNames {
 public:
  // The layout must outlive this object and the names it returns.
  explicit PassNames(const ChunkLayout* layout)
      : layout_(layout), places_(layout->data_groups.size(), 0) {}

  // Restarts the numbering from 1.
  void BeginPass() { places_.assign(places_.size(), 0); }
  // The name of the next operation on the chunk, with its first parameter.
  OperationName Next(ChunkId chunk);

 private:
  const ChunkLayout* layout_;
  std::vector<uint32_t> places_;  // by data group: number of its last operation
};

}  // namespace tidepool::trainer
