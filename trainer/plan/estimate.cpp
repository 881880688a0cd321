#include "trainer/plan/estimate.h"

#include <algorithm>
#include <vector>

#include "base/formats/plane_slack.h"
#include "base/units.h"

namespace tidepool::trainer {
namespace {

void AddPool(const ChunkLayout& layout, const EstimateOptions& options, MemoryEstimate* estimate) {
  // Each plane of a chunk takes whole pages; a large one has some extra.
  for (const ChunkPlace& chunk : layout.chunks) {
    if (chunk.frozen) {
      // A page before it holds its name.
      estimate->frozen += kPageBytes + RoundUp(chunk.elements * BytesOf(chunk.dtype), kPageBytes);
      continue;
    }

    const bool is_fp32 = chunk.dtype == DType::kF32;
    const uint64_t gradient_bytes = is_fp32 || options.micro_batches > 1 ? 4 : 2;
    const StateForm form = is_fp32 ? StateForm::kF32 : options.optimizer.states;
    const uint64_t moment = PooledBytes(MomentBytes(form, chunk.elements));
    estimate->master += PooledBytes(MasterBytes(form, chunk.elements));
    if (NeedsMomentum(options.optimizer)) estimate->momentum += moment;
    if (NeedsVariance(options.optimizer)) estimate->variance += moment;
    estimate->param16 += is_fp32 ? 0 : PooledBytes(chunk.elements * 2);
    estimate->gradient += PooledBytes(chunk.elements * gradient_bytes);
  }

  estimate->pool_bytes = estimate->master + estimate->momentum + estimate->variance +
                         estimate->param16 + estimate->gradient;
  estimate->pool_bytes_per_parameter =
      static_cast<double>(estimate->pool_bytes) / static_cast<double>(estimate->trained_parameters);
}

void AddExchange(const ChunkLayout& layout, const EstimateOptions& options,
                 MemoryEstimate* estimate) {
  struct Largest {
    uint64_t reduced = 0, gathered = 0;
  };

  std::vector<Largest> largest(layout.data_groups.size());
  for (ChunkId chunk = 0; chunk < layout.chunks.size(); ++chunk) {
    if (layout.ShardCount(chunk) == 1) continue;
    Largest& of_group = largest[layout.chunks[chunk].data_group];
    of_group.gathered = std::max(of_group.gathered, layout.ChunkBytes(chunk));
    if (!layout.chunks[chunk].frozen)
      of_group.reduced = std::max(of_group.reduced, layout.ChunkBytes(chunk));
  }

  for (Rank rank = 0; rank < layout.world; ++rank) {
    uint64_t parts = 0, staging = 0;
    for (size_t group = 0; group < largest.size(); ++group) {
      const std::vector<Rank>& members = layout.data_groups[group];
      if (!std::binary_search(members.begin(), members.end(), rank)) continue;
      parts += options.parts_at_once * largest[group].reduced;
      staging += options.staged_at_once * RoundUp(largest[group].gathered, kPageBytes);
    }
    estimate->parts_bytes = std::max(estimate->parts_bytes, parts);
    estimate->staging_bytes = std::max(estimate->staging_bytes, staging);
  }
}

}  // namespace

MemoryEstimate EstimateMemory(const ChunkLayout& layout, const EstimateOptions& options) {
  MemoryEstimate estimate;
  estimate.parameters = layout.ParameterCount();
  estimate.trained_parameters = layout.TrainedParameterCount();
  estimate.padding_bytes = layout.TotalBytes() - layout.ParameterBytes();

  AddPool(layout, options, &estimate);
  AddExchange(layout, options, &estimate);

  uint64_t evictable = 0;
  for (Rank rank = 0; rank < layout.world; ++rank) {
    estimate.resident_bytes = std::max(estimate.resident_bytes, layout.ResidentBytes(rank));
    evictable = std::max(evictable, layout.EvictableChunks(rank));
  }

  estimate.block_bytes = layout.BlockBytes();
  const uint64_t for_blocks =
      options.rcache_bytes - std::min(options.rcache_bytes, estimate.resident_bytes);
  estimate.blocks =
      estimate.block_bytes == 0 ? 0 : std::min(evictable, for_blocks / estimate.block_bytes);
  estimate.rcache_bytes = std::max(options.rcache_bytes, estimate.resident_bytes);

  estimate.resident_share =
      static_cast<double>(estimate.resident_bytes) / static_cast<double>(layout.TotalBytes());
  estimate.evictable_share =
      evictable == 0 ? 1.0 : static_cast<double>(estimate.blocks) / static_cast<double>(evictable);
  return estimate;
}

}  // namespace tidepool::trainer
