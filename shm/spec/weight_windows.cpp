#include "shm/spec/weight_windows.h"

#include <algorithm>
#include <optional>

#include "base/ids.h"
#include "base/units.h"

namespace tidepool::shm {
namespace {

constexpr uint64_t kBlock = WindowSums::kBlock;

// Pool bytes (negative: savings) of having the weights of the chunks from one on in a window of
// `areas` areas, with slots of `slot` bytes, instead of in planes with `planes` bytes.
int64_t WindowCost(uint64_t areas, uint64_t slot, uint64_t planes) {
  return static_cast<int64_t>(2 * areas * slot) - static_cast<int64_t>(planes);
}

// A window must be smaller than the planes that it replaces, so it begins before this chunk.
uint64_t WindowsEnd(uint64_t chunks, uint64_t areas) {
  return chunks - std::min(chunks, 2 * areas);
}

// Calls `visit(first, slot)` for the chunks of [begin, end), the last one first, until it returns
// false; `end` is the end of the block. `slot`: slot size of the window from `first` on.
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

// Windows of a given number of areas, for the chunks from `from` on or from a later one.
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

  // The last one that costs no more.
  std::optional<ChunkId> LastWithin(int64_t cost) const {
    const auto dearer = [cost](int64_t least) { return least > cost; };
    // The least cost from each block on is no more than that from the next one on.
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

uint64_t SlotBytesFromSums(const JobSpec& spec, ChunkId first) {
  uint64_t largest = 0;
  ForSlots(*spec.sums.made, first, EndOfBlock(spec.chunks.size(), first / kBlock),
           [&largest](uint64_t, uint64_t slot) {
             largest = slot;
             return true;
           });
  return largest;
}

WeightSpill WindowFromSums(const JobSpec& spec, ChunkId from, uint64_t missing) {
  const int64_t cost_max = -static_cast<int64_t>(missing);
  WeightSpill least;
  auto least_cost = int64_t{0};
  for (uint32_t areas = kWeightAreasMax; areas > 0; --areas) {
    const WindowsFrom windows(*spec.sums.made, areas, from);
    if (const auto first = windows.LastWithin(cost_max)) return {.first = *first, .areas = areas};

    const int64_t cost = windows.LeastCost();
    if (cost >= least_cost) continue;
    least_cost = cost;
    least = {.first = *windows.LastWithin(cost), .areas = areas};
  }
  return least;
}

}  // namespace tidepool::shm
