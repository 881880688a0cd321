#include "shm/spec/job_spec.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/hot.h"
#include "base/point.h"

namespace tidepool::shm {

bool JobSpec::HasOwnDTypes() const {
  return f32_chunks > 0 ||
         std::any_of(frozen.begin(), frozen.end(),
                     [this](const FrozenChunkSpec& chunk) { return chunk.dtype != dtype; });
}

uint32_t JobSpec::ShardCount(ChunkId chunk) const {
  return static_cast<uint32_t>(std::popcount(data_groups[chunks[chunk].data_group].rank_mask));
}

uint32_t JobSpec::ShardIndex(ChunkId chunk, Rank rank) const {
  TP_CHECK(IsMember(chunk, rank), "the rank has no shard of this chunk");
  const uint64_t below = (uint64_t{1} << rank) - 1;
  return static_cast<uint32_t>(
      std::popcount(data_groups[chunks[chunk].data_group].rank_mask & below));
}

TP_HOT bool JobSpec::IsMember(ChunkId chunk, Rank rank) const {
  return rank < kRanksMax && (data_groups[chunks[chunk].data_group].rank_mask >> rank & 1) != 0;
}

uint64_t JobSpec::ShardElements(ChunkId chunk) const {
  return chunks[chunk].elements / ShardCount(chunk);
}

uint64_t JobSpec::TotalElements() const {
  uint64_t total = 0;
  for (const ChunkSpec& chunk : chunks) total += chunk.elements;
  return total;
}

uint64_t JobSpec::ParameterCount() const {
  if (sums.made != nullptr) return sums.made->parameter_count;
  TP_POINT("shm.spec_summed");
  uint64_t total = 0;
  for (const ParameterSpec& parameter : parameters) total += parameter.element_count;
  return total;
}

DType GradientSlotType(const JobSpec& spec, ChunkId chunk) {
  return spec.HasF32Slots() ? DType::kF32 : spec.DTypeOf(chunk);
}

}  // namespace tidepool::shm
