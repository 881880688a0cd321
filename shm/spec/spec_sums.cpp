#include "shm/spec/spec_sums.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "base/units.h"
#include "shm/spec/frozen.h"
#include "shm/spec/gpu_states.h"
#include "shm/spec/state_footprint.h"

namespace tidepool::shm {
namespace {

constexpr uint64_t kBlock = WindowSums::kBlock;

// What the pool has more when the weights of the chunks from one on are in a window of `areas`
// areas, its slots as large as `slot`, instead of planes with so many bytes.
int64_t WindowCost(uint64_t areas, uint64_t slot, uint64_t planes) {
  return static_cast<int64_t>(2 * areas * slot) - static_cast<int64_t>(planes);
}

// A window is smaller than the planes that it stands for: it begins before this chunk.
uint64_t WindowsEnd(uint64_t chunks, uint64_t areas) {
  return chunks - std::min(chunks, 2 * areas);
}

// Calls `visit(first, slot)` for the chunks of [begin, end) from the last on, until it says false;
// `end` is the end of the block. `slot` is that of the window of the chunks from `first` on.
template <typename Visit>
void ForSlots(const SpecSums& sums, uint64_t begin, uint64_t end, Visit visit) {
  uint64_t slot = sums.windows.slot[DivideUp(end, kBlock)];
  for (uint64_t first = end; first-- > begin;) {
    slot = std::max(slot, sums.weights[first] - sums.weights[first + 1]);
    if (!visit(first, slot)) return;
  }
}

uint64_t EndOfBlock(uint64_t chunks, uint64_t block) {
  return std::min(chunks, (block + 1) * kBlock);
}

WindowSums MakeWindows(const SpecSums& sums, uint64_t chunks) {
  WindowSums windows;
  const uint64_t blocks = DivideUp(chunks, kBlock);
  windows.slot.assign(blocks + 1, 0);
  for (auto& least : windows.least_cost) least.assign(blocks + 1, INT64_MAX);
  uint64_t slot = 0;
  for (uint64_t block = blocks; block-- > 0;) {
    for (auto& least : windows.least_cost) least[block] = least[block + 1];
    for (uint64_t first = EndOfBlock(chunks, block); first-- > block * kBlock;) {
      slot = std::max(slot, sums.weights[first] - sums.weights[first + 1]);
      for (uint64_t areas = 1; areas <= kWeightAreasMax; ++areas) {
        int64_t& least = windows.least_cost[areas - 1][block];
        if (first < WindowsEnd(chunks, areas))
          least = std::min(least, WindowCost(areas, slot, sums.weights[first]));
      }
    }
    windows.slot[block] = slot;
  }
  return windows;
}

// Windows of so many areas, of the chunks from `from` on or from a later one.
class WindowsFrom {
 public:
  WindowsFrom(const SpecSums& sums, uint64_t areas, uint64_t from)
      : sums_(sums),
        areas_(areas),
        chunks_(sums.weights.size() - 1),
        from_(from),
        least_(sums.windows.least_cost[areas - 1]) {}

  // INT64_MAX: there is none.
  int64_t LeastCost() const {
    const uint64_t block = from_ / kBlock;
    int64_t least = least_[block + 1];
    ForSlots(sums_, from_, EndOfBlock(chunks_, block), [&](uint64_t first, uint64_t slot) {
      if (IsWindow(first)) least = std::min(least, WindowCost(areas_, slot, sums_.weights[first]));
      return true;
    });
    return least;
  }

  // The last that costs no more.
  std::optional<ChunkId> LastWithin(int64_t cost) const {
    const auto dearer = [cost](int64_t least) { return least > cost; };
    // From each block on the least is no more than from the one behind it.
    const auto behind = std::partition_point(least_.rbegin(), least_.rend(), dearer);
    if (behind == least_.rend()) return std::nullopt;
    const auto block = static_cast<uint64_t>(least_.rend() - behind) - 1;
    std::optional<ChunkId> last;
    ForSlots(sums_, std::max(from_, block * kBlock), EndOfBlock(chunks_, block),
             [&](uint64_t first, uint64_t slot) {
               if (IsWindow(first) && WindowCost(areas_, slot, sums_.weights[first]) <= cost)
                 last = static_cast<ChunkId>(first);
               return !last;
             });
    return last;
  }

 private:
  bool IsWindow(uint64_t first) const { return first < WindowsEnd(chunks_, areas_); }

  const SpecSums& sums_;
  const uint64_t areas_, chunks_, from_;
  const std::vector<int64_t>& least_;
};

}  // namespace

uint64_t SlotBytesFromSums(const JobSpec& spec, ChunkId first) {
  uint64_t largest = 0;
  ForSlots(*spec.sums.made, first, EndOfBlock(spec.chunks.size(), first / kBlock),
           [&largest](uint64_t, uint64_t slot) {
             largest = slot;
             return true;
           });
  return largest;
}

WeightSpill WindowFromSums(const JobSpec& spec, ChunkId first_spilled, uint64_t pool_bytes) {
  const uint64_t all = HostBytesOf(spec, first_spilled);
  WeightSpill least;
  auto least_cost = int64_t{0};
  for (uint32_t areas = kWeightAreasMax; areas > 0; --areas) {
    const WindowsFrom windows(*spec.sums.made, areas, std::max(first_spilled, spec.states_on_gpu));
    const int64_t missing = -static_cast<int64_t>(all - pool_bytes);
    if (const auto first = windows.LastWithin(missing)) return {.first = *first, .areas = areas};
    const int64_t cost = windows.LeastCost();
    if (cost >= least_cost) continue;
    least_cost = cost;
    least = {.first = *windows.LastWithin(cost), .areas = areas};
  }
  return least;
}

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

  if (spec.dtype != DType::kF32) sums->windows = MakeWindows(*sums, chunks);
  for (Rank rank = 0; rank < spec.world && spec.states_on_gpu > 0; ++rank) {
    sums->gpu_staging_elements.push_back(GpuStagingOf(spec, rank).elements);
    sums->gpu_share_bytes.push_back(GpuShareBytes(spec, rank));
  }
  sums->parameter_count = spec.ParameterCount();
  for (const FrozenChunkSpec& chunk : spec.frozen)
    sums->frozen.emplace_back(FrozenBytes(spec, chunk), chunk.content);
  std::sort(sums->frozen.begin(), sums->frozen.end());
  sums->frozen.erase(std::unique(sums->frozen.begin(), sums->frozen.end()), sums->frozen.end());
  return sums;
}

}  // namespace tidepool::shm
