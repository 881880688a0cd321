// Traces: which experts the tokens of a micro-batch go to, by block; the points that bench_moe
// measures, fixed before the first measurement.
//
// Six blocks of 16 experts. The counts were drawn once. four: four experts of each block share all
// tokens; few: 8 tokens choose two experts each, all alike; skewed: 32 tokens do, the i-th expert
// of a block's own order with a chance like i^-1.5; all: every expert has tokens.
#pragma once

#include <array>
#include <cstdint>

namespace tidepool::bench {

inline constexpr uint32_t kMoeBlocks = 6, kMoeExperts = 16;

// The tokens of one micro-batch.
struct RoutingTrace {
  const char* name;
  // Tokens, by block and expert.
  std::array<std::array<uint32_t, kMoeExperts>, kMoeBlocks> tokens;
};

inline constexpr std::array<RoutingTrace, 4> kTraces = {{
    {"four",
     {{{{128, 0, 0, 128, 128, 0, 0, 0, 0, 128, 0, 0, 0, 0, 0, 0}},
       {{0, 128, 128, 0, 0, 0, 0, 0, 0, 0, 0, 128, 0, 0, 128, 0}},
       {{0, 128, 0, 128, 0, 0, 0, 0, 0, 0, 0, 128, 128, 0, 0, 0}},
       {{128, 0, 0, 0, 0, 128, 0, 0, 128, 128, 0, 0, 0, 0, 0, 0}},
       {{0, 0, 0, 0, 0, 128, 0, 0, 128, 0, 128, 0, 0, 0, 128, 0}},
       {{128, 0, 0, 0, 0, 0, 0, 0, 0, 128, 0, 128, 0, 128, 0, 0}}}}},
    {"few",
     {{{{1, 1, 0, 2, 2, 1, 0, 0, 1, 3, 2, 1, 0, 2, 0, 0}},
       {{0, 2, 0, 0, 1, 3, 3, 0, 2, 1, 1, 0, 0, 0, 1, 2}},
       {{1, 1, 1, 0, 2, 1, 2, 1, 1, 1, 0, 1, 1, 3, 0, 0}},
       {{2, 2, 1, 0, 0, 0, 3, 1, 1, 0, 0, 1, 2, 1, 1, 1}},
       {{1, 1, 0, 0, 1, 2, 2, 1, 1, 0, 2, 1, 2, 0, 0, 2}},
       {{2, 0, 0, 3, 2, 0, 1, 1, 0, 2, 1, 0, 0, 1, 2, 1}}}}},
    {"skewed",
     {{{{3, 2, 4, 7, 1, 0, 9, 1, 3, 2, 0, 0, 0, 27, 5, 0}},
       {{1, 24, 9, 0, 0, 0, 5, 0, 0, 0, 4, 6, 4, 2, 7, 2}},
       {{5, 26, 2, 1, 3, 0, 1, 3, 0, 1, 0, 0, 1, 6, 1, 14}},
       {{1, 0, 0, 1, 1, 13, 1, 5, 2, 2, 2, 1, 24, 5, 0, 6}},
       {{1, 4, 1, 0, 1, 0, 8, 15, 1, 2, 1, 21, 1, 1, 1, 6}},
       {{1, 1, 15, 2, 0, 1, 1, 0, 7, 3, 0, 2, 4, 2, 25, 0}}}}},
    {"all",
     {{{{32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32}},
       {{32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32}},
       {{32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32}},
       {{32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32}},
       {{32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32}},
       {{32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32}}}}},
}};

// Blocks of the rCache beside the chunk in use, and computing as a share of the time that the
// trace's bytes take.
inline constexpr std::array<uint64_t, 2> kMoeRooms = {8, 32};
inline constexpr std::array<double, 2> kMoeComputing = {0.25, 0.75};

}  // namespace tidepool::bench
