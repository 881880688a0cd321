// Chunk size by traffic: the size with which a step moves the fewest bytes through an rCache of so
// many bytes, found by simulating each size (Elixir v2, appendix A.2). Least waste
// (trainer/layout/chunk_size.h) asks how well parameters fill chunks; this asks also how well
// blocks fill the rCache.
//
// Any thread; pure functions of their arguments: every rank finds the same size. Units and runs are
// those of chunk_size.h.
// Simulated is a step whose forward uses each parameter once, in order, and whose backward uses it
// once in reverse (Elixir v2, section 4.3, "common computation graph"). With Belady's rule n chunks
// and b blocks then take n fetches in forward and n - b in backward, or n where b >= n: the
// simulation of each size is a packing and this count (a test compares it with the replay). A step
// moves what is fetched, and each chunk's gradients once.
#pragma once

#include <cstdint>
#include <vector>

#include "base/units.h"
#include "trainer/layout/chunk_layout.h"
#include "trainer/layout/chunk_size.h"

namespace tidepool::trainer {

// The --chunk-size that is found so.
inline constexpr const char* kChunkByTraffic = "traffic";

// Fetches of one step. Requires blocks > 0.
uint64_t FetchesOfStep(uint64_t chunks, uint64_t blocks);

// What one size moves.
struct ChunkTrafficTrial {
  ChunkSizeTrial packed;
  uint64_t blocks = 0, fetches = 0;
  uint64_t moved_elements = 0;  // by one step: fetched and handed in
};

// What is weighed beside the runs of a ChunkSizeSearch.
struct ChunkTrafficSearch {
  ChunkSizeSearch sizes;
  uint64_t rcache_elements = 0;  // for blocks
  uint64_t blocks_min = 4;       // sizes with fewer blocks are not taken where there are others
};

// The trial of a given size. Requires elements >= every entry of every run.
ChunkTrafficTrial TryChunkTraffic(const ChunkTrafficSearch& search, uint64_t elements);

// The best size: fewest bytes moved, then least waste, then the larger size. Where no size leaves
// blocks_min blocks, the one of the most blocks. The runner-ups of the choice are by traffic, too.
ChunkSizeChoice SearchChunkTraffic(const ChunkTrafficSearch& search);

// The size in bytes for what `layout` packs into evictable chunks, with so many bytes for blocks;
// its own size where a frozen base is packed, whose chunks are alike for all jobs over it, and
// where nothing is evictable (0). `chunk_bytes_max`: as LayoutOptions has it.
uint64_t ChunkBytesByTraffic(const ChunkLayout& layout, uint64_t rcache_block_bytes,
                             uint64_t chunk_bytes_max = 64 * kMiB);

// PatrickStar's search (section 8.1): sizes from `first` to `last` in steps of `step`, and the one
// whose chunks are used best, the smaller one where two are alike; 0 elements where no size holds
// the largest parameter.
ChunkSizeTrial SearchChunkGrid(const std::vector<std::vector<uint64_t>>& runs, uint64_t first,
                               uint64_t last, uint64_t step);
// The share of chunks' elements that are parameters.
double UtilisationOf(const ChunkSizeTrial& trial);

}  // namespace tidepool::trainer
