#include "trainer/layout/chunk_size.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "base/check.h"
#include "base/units.h"

namespace tidepool::trainer {
namespace {

constexpr uint64_t kGridSteps = 128;  // evenly spaced sizes to try
// Parameters per run at which sums of neighbours start.
constexpr uint64_t kNaturalStarts = 32;
// Candidates x parameters: keeps the search under 100 ms.
constexpr uint64_t kPackingsMax = 1u << 24;
constexpr size_t kRunnersUp = 3;

struct Bounds {
  uint64_t lower, upper;
};

Bounds BoundsOf(const ChunkSizeSearch& search) {
  uint64_t largest = 0, total = 0;
  for (const auto& run : search.runs) {
    for (const uint64_t size : run) {
      largest = std::max(largest, size);
      total += size;
    }
  }
  TP_CHECK(largest > 0, "a chunk size is searched for at least one parameter");
  const uint64_t lower = RoundUp(std::max(largest, search.elements_min), search.multiple);
  uint64_t upper = total / std::max<uint64_t>(1, search.chunks_min);
  if (search.elements_max != 0) upper = std::min(upper, search.elements_max);
  // A quarter above the largest parameter is always allowed: its small neighbours can then share
  // its chunk.
  upper = std::max(lower + lower / 4, upper) / search.multiple * search.multiple;
  return {lower, std::max(lower, upper)};
}

// Sizes that exactly fit a run of neighbours: a transformer's layers repeat, so these are where
// packing is tight.
void AddNaturalSizes(const ChunkSizeSearch& search, const Bounds& bounds,
                     std::vector<uint64_t>* sizes) {
  for (const auto& run : search.runs) {
    const uint64_t starts = std::min<uint64_t>(kNaturalStarts, run.size());

    for (uint64_t start = 0; start < starts; ++start) {
      uint64_t sum = 0;
      for (uint64_t i = start; i < run.size() && sum <= bounds.upper; ++i) {
        sum += run[i];
        const uint64_t size = RoundUp(sum, search.multiple);
        if (size >= bounds.lower && size <= bounds.upper) sizes->push_back(size);
      }
    }
  }
}

// Keeps every k-th size, to bound the search time of huge models.
void Thin(uint64_t most, std::vector<uint64_t>* sizes) {
  if (sizes->size() <= most) return;
  const uint64_t stride = DivideUp(sizes->size(), most);
  std::vector<uint64_t> kept;
  for (size_t i = 0; i < sizes->size(); i += stride) kept.push_back((*sizes)[i]);
  *sizes = std::move(kept);
}

std::vector<uint64_t> Candidates(const ChunkSizeSearch& search, const Bounds& bounds) {
  uint64_t parameters = 0;
  for (const auto& run : search.runs) parameters += run.size();
  std::vector<uint64_t> sizes;
  AddNaturalSizes(search, bounds, &sizes);

  const uint64_t step =
      RoundUp(std::max<uint64_t>(1, (bounds.upper - bounds.lower) / kGridSteps), search.multiple);
  for (uint64_t size = bounds.lower; size <= bounds.upper; size += step) sizes.push_back(size);

  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  Thin(std::clamp<uint64_t>(kPackingsMax / parameters, 1, kChunkSizesMax), &sizes);
  return sizes;
}

std::string ReasonOf(const ChunkSizeChoice& choice, const Bounds& bounds, const char* unit) {
  std::array<char, 200> text{};
  std::snprintf(text.data(), text.size(),
                "%llu %s a chunk waste %.2f %%, the least of %llu sizes between %llu and %llu %s",
                static_cast<unsigned long long>(choice.best.elements), unit,
                100 * choice.waste_share, static_cast<unsigned long long>(choice.candidates),
                static_cast<unsigned long long>(bounds.lower),
                static_cast<unsigned long long>(bounds.upper), unit);
  return text.data();
}

}  // namespace

std::vector<uint64_t> CandidateSizes(const ChunkSizeSearch& search) {
  return Candidates(search, BoundsOf(search));
}

ChunkSizeTrial TryChunkSize(const std::vector<std::vector<uint64_t>>& runs, uint64_t elements) {
  ChunkSizeTrial trial{elements, 0, 0};
  uint64_t used = 0;

  for (const auto& run : runs) {
    uint64_t room = 0;
    for (const uint64_t size : run) {
      TP_CHECK(size <= elements, "a parameter fits into one chunk");
      if (size > room) {
        ++trial.chunks;
        room = elements;
      }
      room -= size;
      used += size;
    }
  }

  trial.waste_elements = trial.chunks * elements - used;
  return trial;
}

ChunkSizeChoice SearchChunkSize(const ChunkSizeSearch& search) {
  const Bounds bounds = BoundsOf(search);
  std::vector<ChunkSizeTrial> trials;
  for (const uint64_t size : Candidates(search, bounds))
    trials.push_back(TryChunkSize(search.runs, size));
  std::sort(trials.begin(), trials.end(), [](const ChunkSizeTrial& a, const ChunkSizeTrial& b) {
    return a.waste_elements != b.waste_elements ? a.waste_elements < b.waste_elements
                                                : a.elements > b.elements;
  });

  ChunkSizeChoice choice;
  choice.searched = true;
  choice.best = trials.front();
  choice.candidates = trials.size();
  const uint64_t bytes = choice.best.chunks * choice.best.elements;
  choice.waste_share = static_cast<double>(choice.best.waste_elements) / static_cast<double>(bytes);

  trials.erase(trials.begin());
  if (trials.size() > kRunnersUp) trials.resize(kRunnersUp);
  choice.runners_up = std::move(trials);
  choice.reason = ReasonOf(choice, bounds, search.unit);
  return choice;
}

}  // namespace tidepool::trainer
