// Chunk size by traffic: the size with which a step moves the fewest bytes through an rCache of a
// given size, found by simulating each candidate (Elixir v2, appendix A.2). Least waste
// (trainer/layout/chunk_size.h) measures how well parameters fill chunks; this also measures how
// well blocks fill the rCache.
//
// Any thread; pure functions of their arguments: every rank finds the same size. Units and runs are
// those of chunk_size.h. The simulated step uses each parameter once in forward, in order, and once
// in backward, in reverse (Elixir v2, section 4.3, "common computation graph"). With Belady's rule
// n chunks and b blocks then take n fetches in forward and n - b in backward, or n if b >= n:
// simulating a size is a packing and this count (a test compares it with the replay). A step moves
// its fetches, and each chunk's gradients once.
#pragma once

#include <cstdint>
#include <vector>

#include "base/units.h"
#include "trainer/layout/chunk_layout.h"
#include "trainer/layout/chunk_size.h"

namespace tidepool::trainer {

// The value of --chunk-size for this search.
inline constexpr const char* kChunkByTraffic = "traffic";

// Fetches of one step. Requires blocks > 0.
uint64_t FetchesOfStep(uint64_t chunks, uint64_t blocks);

// The traffic of one size.
struct ChunkTrafficTrial {
  ChunkSizeTrial packed;
  uint64_t blocks = 0, fetches = 0;
  uint64_t moved_elements = 0;  // per step: fetched and submitted
};

// Inputs besides the runs of a ChunkSizeSearch.
struct ChunkTrafficSearch {
  ChunkSizeSearch sizes;
  uint64_t rcache_elements = 0;  // for blocks
  uint64_t blocks_min = 4;       // sizes with fewer blocks are a last resort
};

// The trial of a given size. Requires elements >= every entry of every run.
ChunkTrafficTrial TryChunkTraffic(const ChunkTrafficSearch& search, uint64_t elements);

// The best size: fewest bytes moved, then least waste, then the larger size. If no size leaves
// blocks_min blocks, the one with the most blocks. Runners-up are ranked by traffic, too.
ChunkSizeChoice SearchChunkTraffic(const ChunkTrafficSearch& search);

// The size in bytes for the evictable chunks of `layout`, given the bytes for blocks; the layout's
// own size for a frozen base, whose chunks must be equal in all jobs over it, and if nothing is
// evictable (0). `chunk_bytes_max`: as in LayoutOptions.
uint64_t ChunkBytesByTraffic(const ChunkLayout& layout, uint64_t rcache_block_bytes,
                             uint64_t chunk_bytes_max = 64 * kMiB);

// PatrickStar's search (section 8.1): of the sizes from `first` to `last` in steps of `step`, the
// one with the best utilisation, the smaller one in a tie; 0 elements if no size holds the largest
// parameter.
ChunkSizeTrial SearchChunkGrid(const std::vector<std::vector<uint64_t>>& runs, uint64_t first,
                               uint64_t last, uint64_t step);
// The fraction of the chunks' elements that are parameters.
double UtilisationOf(const ChunkSizeTrial& trial);

}  // namespace tidepool::trainer
