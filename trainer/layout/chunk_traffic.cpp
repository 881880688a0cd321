#include "trainer/layout/chunk_traffic.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace tidepool::trainer {
namespace {

constexpr size_t kNextBest = 3;
constexpr uint64_t kAlignBytes = 64;

// Smaller is better; a size without room for blocks_min blocks comes after all others.
auto KeyOf(const ChunkTrafficSearch& search, const ChunkTrafficTrial& trial) {
  const bool few = trial.blocks < search.blocks_min;
  return std::make_tuple(few, few ? -static_cast<int64_t>(trial.blocks) : 0, trial.moved_elements,
                         trial.packed.waste_elements, -static_cast<int64_t>(trial.packed.elements));
}

// The sizes of the least-waste search, and those that divide the rCache evenly.
std::vector<uint64_t> Sizes(const ChunkTrafficSearch& search) {
  std::vector<uint64_t> sizes = CandidateSizes(search.sizes);
  const uint64_t lowest = sizes.front(), highest = sizes.back(), multiple = search.sizes.multiple;
  for (uint64_t blocks = search.rcache_elements / std::max<uint64_t>(1, highest);
       blocks <= search.rcache_elements / lowest && blocks <= search.rcache_elements / multiple;
       ++blocks) {
    if (blocks == 0) continue;
    const uint64_t size = search.rcache_elements / blocks / multiple * multiple;
    if (size >= lowest && size <= highest) sizes.push_back(size);
    if (sizes.size() >= kChunkSizesMax) break;
  }

  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

std::string ReasonOf(const ChunkTrafficTrial& best, size_t sizes, const char* unit) {
  std::array<char, 220> text{};
  std::snprintf(text.data(), text.size(),
                "%llu %s a chunk move the fewest of %zu sizes: %llu chunks, %llu blocks, %llu "
                "fetches a step",
                static_cast<unsigned long long>(best.packed.elements), unit, sizes,
                static_cast<unsigned long long>(best.packed.chunks),
                static_cast<unsigned long long>(best.blocks),
                static_cast<unsigned long long>(best.fetches));
  return text.data();
}

}  // namespace

uint64_t FetchesOfStep(uint64_t chunks, uint64_t blocks) {
  TP_CHECK(blocks > 0, "a chunk that is used has a block");
  return blocks >= chunks ? chunks : 2 * chunks - blocks;
}

ChunkTrafficTrial TryChunkTraffic(const ChunkTrafficSearch& search, uint64_t elements) {
  ChunkTrafficTrial trial;
  trial.packed = TryChunkSize(search.sizes.runs, elements);
  trial.blocks = search.rcache_elements / elements;
  trial.fetches = FetchesOfStep(trial.packed.chunks, std::max<uint64_t>(1, trial.blocks));
  trial.moved_elements = (trial.fetches + trial.packed.chunks) * elements;
  return trial;
}

ChunkSizeChoice SearchChunkTraffic(const ChunkTrafficSearch& search) {
  std::vector<ChunkTrafficTrial> trials;
  for (const uint64_t size : Sizes(search)) trials.push_back(TryChunkTraffic(search, size));
  std::sort(trials.begin(), trials.end(),
            [&search](const ChunkTrafficTrial& a, const ChunkTrafficTrial& b) {
              return KeyOf(search, a) < KeyOf(search, b);
            });

  ChunkSizeChoice choice;
  choice.searched = true;
  choice.best = trials.front().packed;
  choice.candidates = trials.size();
  choice.waste_share = 1 - UtilisationOf(choice.best);
  choice.reason = ReasonOf(trials.front(), trials.size(), search.sizes.unit);
  for (size_t i = 1; i < std::min(trials.size(), kNextBest + 1); ++i)
    choice.runners_up.push_back(trials[i].packed);
  return choice;
}

uint64_t ChunkBytesByTraffic(const ChunkLayout& layout, uint64_t rcache_block_bytes,
                             uint64_t chunk_bytes_max) {
  ChunkTrafficSearch search;
  search.sizes.unit = "bytes";
  search.sizes.elements_max = chunk_bytes_max;
  search.sizes.chunks_min = search.blocks_min;
  search.rcache_elements = rcache_block_bytes;

  // Runs of parameters by group and dtype, in their order, in bytes.
  std::map<std::pair<uint32_t, DType>, std::vector<uint64_t>> runs;
  for (const ParameterPlace& place : layout.parameters) {
    const ChunkPlace& chunk = layout.chunks[place.chunk];
    if (chunk.frozen && !chunk.resident) return layout.block_bytes;
    if (chunk.resident) continue;
    runs[{chunk.data_group, chunk.dtype}].push_back(
        RoundUp(place.element_count * BytesOf(chunk.dtype), kAlignBytes));
  }
  if (runs.empty()) return 0;

  uint64_t ranks = 1;
  for (const auto& members : layout.data_groups)
    ranks = std::lcm(ranks, static_cast<uint64_t>(members.size()));
  search.sizes.multiple = ranks * kAlignBytes;
  for (auto& [key, run] : runs) search.sizes.runs.push_back(std::move(run));
  return SearchChunkTraffic(search).best.elements;
}

ChunkSizeTrial SearchChunkGrid(const std::vector<std::vector<uint64_t>>& runs, uint64_t first,
                               uint64_t last, uint64_t step) {
  uint64_t largest = 0;
  for (const auto& run : runs) {
    for (const uint64_t size : run) largest = std::max(largest, size);
  }

  ChunkSizeTrial best;
  for (uint64_t size = first; size <= last; size += step) {
    if (size < largest) continue;
    const ChunkSizeTrial trial = TryChunkSize(runs, size);
    if (best.elements == 0 || UtilisationOf(trial) > UtilisationOf(best)) best = trial;
  }
  return best;
}

double UtilisationOf(const ChunkSizeTrial& trial) {
  const uint64_t all = trial.chunks * trial.elements;
  return all == 0 ? 0 : static_cast<double>(all - trial.waste_elements) / static_cast<double>(all);
}

}  // namespace tidepool::trainer
