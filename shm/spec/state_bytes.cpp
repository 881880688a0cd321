#include "shm/spec/state_bytes.h"

#include <algorithm>
#include <bit>

#include "base/formats/plane_slack.h"
#include "base/planted.h"
#include "base/point.h"
#include "base/units.h"
#include "shm/spec/encode.h"

namespace tidepool::shm {

PlaneBytes PlaneBytesOf(const JobSpec& spec, ChunkId chunk) {
  const uint64_t elements = spec.chunks[chunk].elements;
  const StateForm form = spec.StatesOf(chunk);
  const DType dtype = spec.DTypeOf(chunk);
  PlaneBytes bytes;
  bytes.master = MasterBytes(form, elements);
  if (NeedsMomentum(spec.optimizer)) bytes.momentum = MomentBytes(form, elements);
  if (NeedsVariance(spec.optimizer)) bytes.variance = MomentBytes(form, elements);
  if (dtype != DType::kF32) bytes.param16 = elements * BytesOf(dtype);
  bytes.gradient = elements * BytesOf(GradientSlotType(spec, chunk));
  return bytes;
}

uint64_t StagingBytes(const JobSpec& spec, uint64_t shard_elements) {
  const uint64_t gradients = spec.micro_batches > 1 ? shard_elements * BytesOf(spec.DTypeOf(0)) : 0;
  const uint64_t weights = IsSplit(spec.optimizer.states)
                               ? std::min(shard_elements * sizeof(float), kSplitPutBytesMax)
                               : 0;
  return std::max(gradients, weights);
}

uint64_t ExtentCount(const JobSpec& spec) {
  if (spec.sums.made != nullptr) return spec.sums.made->extents;
  const uint64_t planes = 2 + (NeedsMomentum(spec.optimizer) ? 1 : 0) +
                          (NeedsVariance(spec.optimizer) ? 1 : 0) +
                          (spec.dtype != DType::kF32 ? 1 : 0);
  uint64_t members = 0;  // ranks with a shard
  for (const ChunkSpec& chunk : spec.chunks)
    members |= spec.data_groups[chunk.data_group].rank_mask;
  const uint64_t staging =
      StagingBytes(spec, 1) > 0 ? static_cast<uint64_t>(std::popcount(members)) : 0;
  return 1 + staging + planes * spec.chunks.size() - spec.f32_chunks;
}

std::vector<uint64_t> LargestShards(const JobSpec& spec) {
  if (spec.sums.made != nullptr) return spec.sums.made->largest_shards;
  std::vector<uint64_t> of_group(spec.data_groups.size(), 0), of_rank(spec.world, 0);
  for (const ChunkSpec& chunk : spec.chunks)
    of_group[chunk.data_group] = std::max(of_group[chunk.data_group], chunk.elements);

  for (size_t group = 0; group < of_group.size(); ++group) {
    const uint64_t members = spec.data_groups[group].rank_mask;
    for (Rank rank = 0; rank < spec.world; ++rank) {
      if ((members >> rank & 1) != 0)
        of_rank[rank] = std::max(of_rank[rank], of_group[group] / std::popcount(members));
    }
  }
  return of_rank;
}

std::vector<uint32_t> ChunksOfRanks(const JobSpec& spec) {
  if (spec.sums.made != nullptr) return spec.sums.made->chunks_of_ranks;
  std::vector<uint32_t> of_group(spec.data_groups.size(), 0), of_rank(spec.world, 0);
  for (const ChunkSpec& chunk : spec.chunks) ++of_group[chunk.data_group];
  for (size_t group = 0; group < of_group.size(); ++group) {
    for (Rank rank = 0; rank < spec.world; ++rank)
      of_rank[rank] += (spec.data_groups[group].rank_mask >> rank & 1) != 0 ? of_group[group] : 0;
  }
  return of_rank;
}

TableCounts TableCountsOf(const JobSpec& spec) {
  if (spec.sums.made != nullptr) return {spec.sums.made->pieces, spec.sums.made->shards};
  TableCounts counts;
  for (ChunkId id = 0; id < spec.chunks.size(); ++id) {
    counts.pieces += DivideUp(spec.chunks[id].elements, kPieceElements);
    counts.shards += spec.ShardCount(id);
  }
  return counts;
}

StateBytes StateBytesOf(const JobSpec& spec) {
  if (spec.sums.made != nullptr && !TP_PLANTED("shm.summed_each_time"))
    return spec.sums.made->states;
  TP_POINT("shm.spec_summed");

  StateBytes sum;
  for (ChunkId id = 0; id < spec.chunks.size(); ++id) {
    const PlaneBytes planes = PlaneBytesOf(spec, id);
    sum.master += PooledBytes(planes.master);
    sum.momentum += PooledBytes(planes.momentum);
    sum.variance += PooledBytes(planes.variance);
    sum.param16 += PooledBytes(planes.param16);
    sum.gradient += PooledBytes(planes.gradient);
  }

  for (const uint64_t shard : LargestShards(spec))
    sum.staging += RoundUp(StagingBytes(spec, shard), kPageBytes);

  const TableCounts counts = TableCountsOf(spec);
  const uint64_t tables = spec.chunks.size() * kChunkRecordBytes +
                          spec.world * kStagingRecordBytes + counts.pieces * kProgressBytes +
                          counts.shards * kShardRecordBytes;
  const uint64_t words = spec.parameters.size() + ExtentCount(spec) + spec.frozen.size();
  const uint64_t slots = 2 * StepSlotBytes(spec.parameter_groups.size(), spec.parameters.size());
  const uint64_t encoded = RoundUp(Encode(spec).size(), 8);
  sum.records = RoundUp(kJobRecordBytes + tables + words * 8 + encoded + slots, kPageBytes);
  return sum;
}

}  // namespace tidepool::shm
