// Search: the paper's numbers, the formulas against the list of transfers, and the choice against
// everything else that would fit.
#include "trainer/plan/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "base/units.h"
#include "tests/trainer/plan/random_schedule.h"
#include "trainer/plan/replay.h"

namespace tidepool::trainer {
namespace search_test {

struct Golden {
  Rates rates;
  uint32_t ranks;
  double blocks, states;  // I and J of Elixir v2
};

// Elixir v2's own constants.
Rates OfRepository(uint32_t n) {
  return {16.3 * n + 8.7, 15.8 * n + 2.3, 1.66 * std::log(n) + 5.15, 50.0 * n};
}

// Tables 4 and 5 of Elixir v2.
const Golden kDevelopment[] = {{{22, 16, 5, 50}, 1, .10795, .05019},
                               {{50, 40, 6.5, 100}, 2, .04500, .05198},
                               {{70, 60, 7.5, 200}, 4, .03095, .08020}};
const Golden kAws[] = {{{12, 13, 3.7, 44}, 1, .16026, .07537},
                       {{12, 13, 5.6, 86}, 2, .16026, .13923},
                       {{25, 26, 5, 171}, 4, .07846, .16800}};

TEST(Gains, AreThoseOfThePapersTables) {
  for (const auto& table : {kDevelopment, kAws}) {
    for (int i = 0; i < 3; ++i) {
      const Golden& g = table[i];
      EXPECT_NEAR(GainOfBlocks(CostModel::kPaper, g.rates, {}), g.blocks, 5e-6);
      EXPECT_NEAR(GainOfStates(CostModel::kPaper, g.rates, {}, g.ranks), g.states, 5e-6);
    }
  }
}

TEST(Gains, OfThePapersOwnConstantsPutTheRcacheFirstOnOneDeviceOnly) {
  for (const uint32_t n : {1U, 2U, 4U, 8U}) {
    const Rates rates = OfRepository(n);
    EXPECT_EQ(
        GainOfStates(CostModel::kPaper, rates, {}, n) > GainOfBlocks(CostModel::kPaper, rates, {}),
        n > 1)
        << n;
  }
}

// What this project moves can decide otherwise than what the paper moves.
TEST(Gains, OfTheRealTransfersUploadWhereThePaperWouldNot) {
  const Golden& two = kAws[1];
  EXPECT_NEAR(GainOfBlocks(CostModel::kTransfers, two.rates, {}), .0833, 5e-5);
  EXPECT_NEAR(GainOfStates(CostModel::kTransfers, two.rates, {}, 2), .0934, 5e-5);
  EXPECT_LT(GainOfStates(CostModel::kPaper, two.rates, {}, 2),
            GainOfBlocks(CostModel::kPaper, two.rates, {}));
}

constexpr uint64_t kElements = 7000;  // of a chunk; divided by all numbers of ranks that are tried

// Forward over all chunks, backward in reverse: the paper's common graph.
SearchInput CommonGraph(uint32_t chunks, CostModel model, const Rates& rates, uint32_t ranks) {
  SearchInput input;
  input.model = model;
  input.rates = rates;
  input.ranks = ranks;
  input.block_bytes = kElements * 2;
  input.chunks.assign(chunks, {.elements = kElements, .states_bytes = kElements * 14 / ranks});
  input.sizes = SizesOf(TrainingSchedule(chunks, 1), std::vector<bool>(chunks, true));
  return input;
}

// I and J are what the list of transfers gives for one more block, and for one more chunk.
TEST(Gains, AreWhatOneMoreBlockOrChunkSaves) {
  for (const CostModel model : {CostModel::kPaper, CostModel::kTransfers}) {
    for (const Golden& g : {kAws[0], kAws[1], kDevelopment[2]}) {
      const SearchInput input = CommonGraph(12, model, g.rates, g.ranks);
      const double now = CostOf(input, input.sizes[3], 2).seconds;
      const double block = now - CostOf(input, input.sizes[4], 2).seconds;
      EXPECT_NEAR(block * 1e9 / static_cast<double>(input.block_bytes),
                  GainOfBlocks(model, g.rates, {}), 1e-9);
      const double chunk = now - CostOf(input, input.sizes[3], 3).seconds;
      EXPECT_NEAR(chunk * 1e9 / static_cast<double>(input.chunks[2].states_bytes),
                  GainOfStates(model, g.rates, {}, g.ranks), 1e-9);
    }
  }
}

TEST(Room, IsThePapersFormulaWithTheTermsThatItOmits) {
  // 0.95 (40000 - 2000 - 1.25 x 8000)
  EXPECT_EQ(AllowedBytes({.capacity = 40000, .buffers = 2000, .activations = 8000}), 26600U);
  EXPECT_EQ(AllowedBytes({.capacity = 40000,
                          .taken = 1000,
                          .spare = 300,
                          .resident = 700,
                          .buffers = 2000,
                          .activations = 8000}),
            24700U);
  EXPECT_EQ(AllowedBytes({.capacity = 10000, .activations = 9000}), 0U);
}

TEST(Sizes, GoFromTheSmallestToOneBlockAChunk) {
  const AccessSchedule order = TrainingSchedule(10, 1);
  const auto sizes = SizesOf(order, std::vector<bool>(10, true));
  ASSERT_EQ(sizes.size(), 10U);
  EXPECT_EQ(sizes.front().blocks, SmallestRcache(order, std::vector<bool>(10, true)));
  EXPECT_EQ(sizes[3].blocks, 4U);
  // The last four of forward stay.
  EXPECT_EQ(std::count(sizes[3].fetches.begin(), sizes[3].fetches.end(), 2U), 6);
  EXPECT_EQ(sizes.back().fetches, std::vector<uint32_t>(10, 1));
  const auto few = SizesOf(order, std::vector<bool>(10, true), 4);
  ASSERT_EQ(few.size(), 4U);
  EXPECT_EQ(few.front().blocks, 1U);
  EXPECT_EQ(few.back().blocks, 10U);
}

TEST(Search, GivesAllToBlocksWhereNoRatesAreKnownAndNoMoreThanHelp) {
  SearchInput input = CommonGraph(10, CostModel::kTransfers, {}, 1);
  input.allowed_bytes = 6 * input.block_bytes + 5;
  SearchChoice choice = Search(input).value();
  EXPECT_EQ(choice.best.blocks, 6U);
  EXPECT_EQ(choice.best.uploads, 0U);
  EXPECT_FALSE(choice.states_weighed);
  EXPECT_EQ(choice.best.bytes_up, (10 + 4) * kElements * 2);
  EXPECT_EQ(choice.best.bytes_down, 10 * kElements * 2);
  EXPECT_EQ(choice.left_bytes, 5U);
  input.allowed_bytes = 100 * input.block_bytes;
  EXPECT_EQ(Search(input).value().best.blocks, 10U);
}

TEST(Search, TellsWhatTheSmallestRcacheNeeds) {
  SearchInput input = CommonGraph(10, CostModel::kTransfers, kAws[0].rates, 1);
  input.allowed_bytes = input.block_bytes - 1;
  const Status status = Search(input).status();
  EXPECT_EQ(status.id(), ErrorId::kRcacheTooSmall);
  EXPECT_NE(status.what().find("needs 1 block "), std::string::npos) << status.what();
}

TEST(Search, CountsTheLongerOfCopiesAndHostUpdatesWhereTheyOverlap) {
  SearchInput input = CommonGraph(10, CostModel::kTransfers, {10, 10, 1, 100}, 1);
  const double copies = static_cast<double>((10 + 7 + 10) * kElements * 2) / 10 / 1e9,
               host = 10.0 * kElements / 1 / 1e9;
  const RcacheSize& three = input.sizes[2];
  EXPECT_DOUBLE_EQ(CostOf(input, three, 0).seconds, copies + host);
  input.overlap = true;
  EXPECT_DOUBLE_EQ(CostOf(input, three, 0).seconds, std::max(copies, host));
}

TEST(Search, LeavesFrozenChunksWithoutStates) {
  SearchInput input = CommonGraph(6, CostModel::kTransfers, kAws[2].rates, 4);
  for (size_t chunk = 2; chunk < 6; ++chunk) input.chunks[chunk].trained = false;
  input.allowed_bytes = 1000 * input.block_bytes;
  const SearchChoice choice = Search(input).value();
  EXPECT_EQ(choice.best.uploads, 2U);
}

// Everything that fits, each priced by a replay of its own and the transfers written out.
double Exhaustive(const SearchInput& input, uint32_t chunks) {
  double best = INFINITY;
  const AccessSchedule order = TrainingSchedule(chunks, 1);
  for (uint64_t blocks = 1; blocks <= chunks; ++blocks) {
    const Plan plan = BeladySimulate(order, {std::vector<bool>(chunks, true), blocks, {}}).value();
    for (uint64_t uploads = 0; uploads <= chunks; ++uploads) {
      if (blocks * input.block_bytes + uploads * input.chunks[0].states_bytes > input.allowed_bytes)
        continue;
      double seconds = 0;
      for (ChunkId chunk = 0; chunk < chunks; ++chunk) {
        const double one = static_cast<double>(kElements) / 1e9,
                     again = plan.fetches_of_chunk[chunk] - 1;
        const bool paper = input.model == CostModel::kPaper;
        seconds += chunk < uploads
                       ? one / input.rates.device_update
                       : one * ((paper ? 4 : 2) + again * 2) / input.rates.to_device +
                             one * (2 + (paper ? again * 2 : 0)) / input.rates.from_device +
                             one / input.rates.host_update;
      }
      best = std::min(best, seconds);
    }
  }
  return best;
}

TEST(Search, IsTheBestOfAllThatFits) {
  uint64_t compared = 0, greedy_was_worse = 0;
  SplitMix64 random(5);
  for (const CostModel model : {CostModel::kPaper, CostModel::kTransfers}) {
    for (int round = 0; round < 40; ++round) {
      const auto chunks = static_cast<uint32_t>(2 + random.Below(11));
      const auto rate = [&random](uint64_t most) {
        return 1 + static_cast<double>(random.Below(most));
      };
      const uint32_t ranks = uint32_t{1} << random.Below(3);
      const Rates rates{rate(60), rate(60), rate(10), rate(200) + 20};
      SearchInput input = CommonGraph(chunks, model, rates, ranks);
      input.allowed_bytes =
          input.block_bytes * (1 + random.Below(4 * chunks)) + random.Below(input.block_bytes);
      const SearchChoice choice = Search(input).value();
      EXPECT_NEAR(choice.best.seconds, Exhaustive(input, chunks), 1e-15) << "round " << round;
      EXPECT_LE(
          choice.best.blocks * input.block_bytes + choice.best.states_bytes + choice.left_bytes,
          input.allowed_bytes);
      EXPECT_LE(choice.best.seconds, choice.greedy.seconds);
      greedy_was_worse += choice.best.seconds < choice.greedy.seconds * 0.99;
      ++compared;
    }
  }
  RecordProperty("greedy worse by more than 1 %",
                 std::to_string(greedy_was_worse) + " of " + std::to_string(compared));
  EXPECT_GT(greedy_was_worse, 0U) << "then the paper's rule would do";
}

// The four settings that people have without a search: the largest or the smallest rCache, with no
// states on the device or all that fit.
TEST(Search, IsNeverWorseThanAnyOfTheFourPresets) {
  uint64_t compared = 0, better_than_all = 0, greedy_was_worse = 0;
  double worst_greedy = 1;
  for (const CostModel model : {CostModel::kPaper, CostModel::kTransfers}) {
    for (const bool overlap : {false, true}) {
      for (const Golden& g :
           {kDevelopment[0], kDevelopment[1], kDevelopment[2], kAws[0], kAws[1], kAws[2]}) {
        SearchInput input = CommonGraph(40, model, g.rates, g.ranks);
        input.overlap = overlap;
        for (uint64_t percent = 10; percent <= 300; percent += 10) {  // of the 16-bit parameters
          input.allowed_bytes = 40 * input.block_bytes * percent / 100;
          const SearchChoice choice = Search(input).value();
          double presets = INFINITY;
          for (const uint64_t blocks :
               {uint64_t{1}, std::min<uint64_t>(40, input.allowed_bytes / input.block_bytes)}) {
            const uint64_t left = input.allowed_bytes - blocks * input.block_bytes;
            for (const uint64_t uploads :
                 {uint64_t{0}, std::min<uint64_t>(40, left / input.chunks[0].states_bytes)}) {
              const double seconds = CostOf(input, input.sizes[blocks - 1], uploads).seconds;
              EXPECT_LE(choice.best.seconds, seconds)
                  << percent << " %, " << blocks << " blocks, " << uploads << " uploads";
              presets = std::min(presets, seconds);
            }
          }
          ++compared;
          better_than_all += choice.best.seconds < presets;
          if (overlap) continue;  // I and J know nothing of it
          greedy_was_worse += choice.greedy.seconds > choice.best.seconds * 1.01;
          worst_greedy = std::max(worst_greedy, choice.greedy.seconds / choice.best.seconds);
        }
      }
    }
  }
  EXPECT_EQ(compared, 2U * 2 * 6 * 30);
  RecordProperty("better than all four",
                 std::to_string(better_than_all) + " of " + std::to_string(compared));
  RecordProperty("greedy worse by more than 1 %", std::to_string(greedy_was_worse) + " of " +
                                                      std::to_string(compared / 2) + ", at worst " +
                                                      std::to_string(worst_greedy));
}

}  // namespace search_test
}  // namespace tidepool::trainer
