// Chunk-size search: the common chunk size that wastes the fewest bytes when runs of parameters are
// packed (Elixir v1, section IV-A; Elixir v2, section 4.3 adds that the rCache must hold enough
// chunks).
//
// Any thread; pure functions of their arguments: every rank finds the same size.
// Units: elements if all runs have one dtype, else bytes; the comments below say elements. A run is
// the list of padded parameter sizes of one data group and dtype, in order; each run is packed
// separately.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tidepool::trainer {

// The cost of one size.
struct ChunkSizeTrial {
  uint64_t elements = 0;        // of one chunk
  uint64_t chunks = 0;          // needed for the runs
  uint64_t waste_elements = 0;  // chunks x elements - elements of parameters
};

// The chosen size, and why.
struct ChunkSizeChoice {
  bool searched = false;  // false: the size was given, or nothing is evictable
  ChunkSizeTrial best;
  double waste_share = 0;  // fraction of the bytes of all evictable chunks
  uint64_t candidates = 0;
  std::vector<ChunkSizeTrial> runners_up;  // at most three, next best first
  std::string reason;                      // one sentence for people
};

// Input of the search.
struct ChunkSizeSearch {
  std::vector<std::vector<uint64_t>> runs;
  const char* unit = "elements";  // the unit, for people
  uint64_t multiple = 16;         // chunk sizes are multiples of this
  uint64_t elements_min = 0;      // never below the largest parameter; 0: no other lower bound
  // 0: no upper bound but that of `chunks_min`; 1.25 x the lower bound is always allowed.
  uint64_t elements_max = 0;
  // Limits the size to total / chunks_min, so that a quarter of them is still four blocks.
  uint64_t chunks_min = 16;
};

// The most sizes tried; fewer if there are many parameters.
inline constexpr uint64_t kChunkSizesMax = 2048;
// The sizes that a search tries: evenly spaced ones, and those that exactly fit runs of neighbours;
// ascending, unique, at least one. `runs` must hold at least one parameter.
std::vector<uint64_t> CandidateSizes(const ChunkSizeSearch& search);

// Packs a given size. Requires elements >= every entry of every run.
ChunkSizeTrial TryChunkSize(const std::vector<std::vector<uint64_t>>& runs, uint64_t elements);

// The best size; ties go to the larger one (fewer messages). `runs` must hold at least one
// parameter.
ChunkSizeChoice SearchChunkSize(const ChunkSizeSearch& search);

}  // namespace tidepool::trainer
