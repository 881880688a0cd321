#include "shm/spec/spec_sums.h"

#include <algorithm>
#include <bit>

#include "base/units.h"
#include "shm/spec/frozen.h"
#include "shm/spec/state_footprint.h"

namespace tidepool::shm {

std::vector<uint64_t> LargestShards(const JobSpec& spec) {
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

std::shared_ptr<const SpecSums> MakeSums(const JobSpec& spec) {
  const size_t chunks = spec.chunks.size();
  auto sums = std::make_shared<SpecSums>();
  sums->states = StateBytesOf(spec);
  sums->frozen_pool_bytes = FrozenPoolBytes(spec);
  for (auto* by_chunk : {&sums->off_host, &sums->weights, &sums->nvme})
    by_chunk->assign(chunks + 1, 0);

  const ChunkId on_gpu = std::min<ChunkId>(spec.states_on_gpu, static_cast<ChunkId>(chunks));
  for (ChunkId id = 0; id < on_gpu; ++id) sums->off_host[chunks] += BytesOffHost(spec, id);
  for (size_t i = chunks; i-- > 0;) {
    const auto id = static_cast<ChunkId>(i);
    const bool spills = id >= on_gpu;
    sums->off_host[i] = sums->off_host[i + 1] + (spills ? BytesOffHost(spec, id) : 0);
    sums->nvme[i] = sums->nvme[i + 1] + (spills ? SpilledChunkBytes(spec, id) : 0);
    sums->weights[i] = sums->weights[i + 1] + RoundUp(PlaneBytesOf(spec, id).param16, kPageBytes);
  }
  return sums;
}

}  // namespace tidepool::shm
