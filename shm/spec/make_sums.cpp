#include "shm/spec/make_sums.h"

#include <algorithm>

#include "base/units.h"
#include "shm/spec/encode.h"
#include "shm/spec/frozen.h"
#include "shm/spec/gpu_states.h"
#include "shm/spec/state_bytes.h"
#include "shm/spec/state_footprint.h"
#include "shm/spec/weight_windows.h"

namespace tidepool::shm {

std::shared_ptr<const SpecSums> MakeSums(const JobSpec& spec) {
  const size_t chunks = spec.chunks.size();
  auto sums = std::make_shared<SpecSums>();
  sums->states = StateBytesOf(spec);
  sums->frozen_pool_bytes = FrozenPoolBytes(spec);
  for (auto* by_chunk :
       {&sums->pooled, &sums->off_host, &sums->movable, &sums->weights, &sums->nvme})
    by_chunk->assign(chunks + 1, 0);

  const ChunkId on_gpu = std::min<ChunkId>(spec.states_on_gpu, static_cast<ChunkId>(chunks));
  for (ChunkId id = 0; id < on_gpu; ++id) sums->off_host[chunks] += BytesOffHost(spec, id);
  for (size_t i = chunks; i-- > 0;) {
    const auto id = static_cast<ChunkId>(i);
    const bool spills = id >= on_gpu;
    sums->pooled[i] = sums->pooled[i + 1] + PooledPlanesOf(spec, id);
    sums->off_host[i] = sums->off_host[i + 1] + (spills ? BytesOffHost(spec, id) : 0);
    sums->movable[i] = sums->movable[i + 1] + (spills ? MovablePlanesOf(spec, id) : 0);
    sums->nvme[i] = sums->nvme[i + 1] + (spills ? SpilledChunkBytes(spec, id) : 0);
    sums->weights[i] = sums->weights[i + 1] + RoundUp(PlaneBytesOf(spec, id).param16, kPageBytes);
  }

  const TableCounts counts = TableCountsOf(spec);
  sums->pieces = counts.pieces;
  sums->shards = counts.shards;
  sums->extents = ExtentCount(spec);
  sums->largest_shards = LargestShards(spec);
  sums->chunks_of_ranks = ChunksOfRanks(spec);
  sums->encoded_bytes = EncodedBytesOf(spec);

  if (spec.dtype != DType::kF32) sums->windows = MakeWindows(*sums, chunks);
  for (Rank rank = 0; rank < spec.world && spec.states_on_gpu > 0; ++rank) {
    sums->gpu_staging_elements.push_back(GpuStagingOf(spec, rank).elements);
    sums->gpu_share_bytes.push_back(GpuShareBytes(spec, rank));
  }
  sums->parameter_count = spec.ParameterCount();
  for (const FrozenChunkSpec& chunk : spec.frozen)
    sums->frozen.emplace_back(FrozenBytes(chunk), chunk.content);
  std::sort(sums->frozen.begin(), sums->frozen.end());
  sums->frozen.erase(std::unique(sums->frozen.begin(), sums->frozen.end()), sums->frozen.end());
  return sums;
}

}  // namespace tidepool::shm
