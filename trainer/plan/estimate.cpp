#include "trainer/plan/estimate.h"

#include <algorithm>

#include "base/plane_slack.h"
#include "base/units.h"

namespace tidepool::trainer {
namespace {

void AddPool(const ChunkLayout& layout, const EstimateOptions& options, MemoryEstimate* estimate) {
  const bool is_fp32 = layout.dtype == DType::kF32;
  const uint64_t gradient_bytes = is_fp32 || options.micro_batches > 1 ? 4 : 2;
  // Each chunk's plane lies in whole pages; a large one has some more beside it.
  for (const ChunkPlace& chunk : layout.chunks) {
    if (chunk.frozen) {
      // Behind a page that names it.
      estimate->frozen += kPageBytes + RoundUp(chunk.elements * BytesOf(layout.dtype), kPageBytes);
      continue;
    }
    const uint64_t moment = PooledBytes(MomentBytes(options.optimizer.states, chunk.elements));
    estimate->master += PooledBytes(MasterBytes(options.optimizer.states, chunk.elements));
    if (NeedsMomentum(options.optimizer)) estimate->momentum += moment;
    if (NeedsVariance(options.optimizer)) estimate->variance += moment;
    estimate->param16 += is_fp32 ? 0 : PooledBytes(chunk.elements * 2);
    estimate->gradient += PooledBytes(chunk.elements * gradient_bytes);
  }
  estimate->pool_bytes = estimate->master + estimate->momentum + estimate->variance + estimate->param16 + estimate->gradient;
  estimate->pool_bytes_per_parameter = static_cast<double>(estimate->pool_bytes) / static_cast<double>(estimate->trained_parameters);
}

}  // namespace

MemoryEstimate EstimateMemory(const ChunkLayout& layout, const EstimateOptions& options) {
  MemoryEstimate estimate;
  estimate.parameters = layout.ParameterCount();
  estimate.trained_parameters = layout.TrainedParameterCount();
  estimate.padding_bytes = (layout.TotalElements() - estimate.parameters) * BytesOf(layout.dtype);
  AddPool(layout, options, &estimate);
  uint64_t evictable = 0;
  for (Rank rank = 0; rank < layout.world; ++rank) {
    estimate.resident_bytes = std::max(estimate.resident_bytes, layout.ResidentBytes(rank));
    evictable = std::max(evictable, layout.EvictableChunks(rank));
  }
  estimate.block_bytes = layout.BlockBytes();
  const uint64_t for_blocks = options.rcache_bytes - std::min(options.rcache_bytes, estimate.resident_bytes);
  estimate.blocks = estimate.block_bytes == 0 ? 0 : std::min(evictable, for_blocks / estimate.block_bytes);
  estimate.rcache_bytes = std::max(options.rcache_bytes, estimate.resident_bytes);
  estimate.resident_share =
      static_cast<double>(estimate.resident_bytes) / static_cast<double>(layout.TotalElements() * BytesOf(layout.dtype));
  estimate.evictable_share = evictable == 0 ? 1.0 : static_cast<double>(estimate.blocks) / static_cast<double>(evictable);
  return estimate;
}

}  // namespace tidepool::trainer
