// Units that a micro-batch does not use are not fetched, and hand in nothing: the bytes are those
// of the units that it uses, weights stay right, and ranks with other units wait for nobody in
// vain.
#include <gtest/gtest.h>

#include <set>

#include "base/random.h"
#include "tests/trainer/cache/toy_run.h"
#include "trainer/plan/traffic.h"

namespace tidepool::trainer {
namespace unit_routing_test {

// True for `share` of 16 units, on average.
bool Uses(uint64_t seed, uint64_t share, uint32_t step, uint32_t batch, uint32_t unit) {
  SplitMix64 random((seed << 32) + (uint64_t{step} << 24) + (uint64_t{batch} << 16) + unit);
  return random.Below(16) < share;
}

ToyConfig Toy(uint64_t seed, uint32_t world, const std::vector<uint32_t>& sharers,
              uint32_t experts) {
  ToyConfig config;
  config.layout.world = world;
  config.layout.data_groups.emplace_back();
  for (Rank rank = 0; rank < world; ++rank) config.layout.data_groups[0].push_back(rank);
  config.model = MakeToyExperts(seed, 4, {experts, world, sharers}, &config.layout.data_groups);
  config.layout.chunk_bytes = 192 * 4;
  config.steps = 4;
  config.micro_batches = 2;
  config.delay_max = 7;
  config.delay_seed = seed;
  return config;
}

std::vector<GroupTraffic> Counted(const ToyRankResult& rank, size_t step) {
  return Difference(rank.after_step[step].traffic, rank.before_step[step].traffic);
}

uint64_t Zeros(const ToyRankResult& rank, size_t step) {
  return rank.after_step[step].zeros - rank.before_step[step].zeros;
}

// With a block for each chunk nothing is fetched twice in a micro-batch, and nothing stays.
TEST(UnitRouting, BytesAreThoseOfTheUnitsThatAreUsed) {
  for (const uint32_t world : {1U, 2U, 4U}) {
    ToyConfig config = Toy(world, world, {std::min(world, 2U)}, 8);
    config.blocks = 1000;
    config.evaluate = false;
    config.uses = [](uint32_t step, uint32_t batch, uint32_t unit) {
      return Uses(7, 4, step, batch, unit);
    };
    const ToyResult result = RunToy(config);
    ASSERT_NO_FATAL_FAILURE(ExpectGood(result));

    for (Rank rank = 0; rank < world; ++rank) {
      for (uint32_t step = 1; step < config.steps; ++step) {
        uint64_t theory = 0, zeros = 0;
        for (ChunkId chunk = 0; chunk < result.layout.chunks.size(); ++chunk) {
          const uint32_t unit = result.layout.chunks[chunk].unit;
          if (!result.layout.IsMember(chunk, rank)) continue;
          for (uint32_t batch = 0; batch < config.micro_batches; ++batch) {
            const bool used = unit == 0 || config.uses(step, batch, unit);
            (used ? theory : zeros) += used ? result.layout.ShardBytes(chunk) : 1;
          }
        }
        const GroupTraffic counted = SumOf(Counted(result.ranks[rank], step));
        EXPECT_EQ(counted.fetched, theory) << rank << " in step " << step;
        EXPECT_EQ(counted.handed_in, theory) << rank << " in step " << step;
        EXPECT_EQ(Zeros(result.ranks[rank], step), zeros);
        EXPECT_GT(zeros, 0U);
      }
    }
  }
}

TEST(UnitRouting, InAnyRcacheEveryCountIsThePlansWithoutWhatIsLeftOut) {
  for (const uint32_t world : {1U, 4U}) {
    ToyConfig config = Toy(3, world, {world, 1}, 8);
    config.uses = [](uint32_t step, uint32_t batch, uint32_t unit) {
      return Uses(5, 5, step, batch, unit);
    };
    const uint64_t smallest = SmallestFor(config);
    for (const uint64_t more : {0U, 1U, 2U, 4U, 9U}) {
      for (const uint64_t depth : {0U, 1U, 2U, 5U}) {
        config.blocks = smallest + more;
        config.cache.prefetch_depth = depth;
        const ToyResult result = RunToy(config);
        ASSERT_NO_FATAL_FAILURE(ExpectGood(result));
        for (const ToyRankResult& rank : result.ranks) {
          for (uint32_t step = 1; step < config.steps; ++step) {
            ASSERT_TRUE(rank.followed[step]);
            EXPECT_EQ(rank.planned_groups[step], Counted(rank, step)) << step;
          }
          EXPECT_EQ(rank.after_step.back().deviations, 0U);
        }
      }
    }
  }
}

// No unit without tokens is fetched ahead, however deep.
TEST(UnitRouting, WhatIsNotUsedIsNotFetchedAheadEither) {
  ToyConfig config = Toy(11, 1, {1}, 16);
  config.evaluate = false;
  config.blocks = 24;
  config.cache.prefetch_depth = 100;
  config.uses = [](uint32_t, uint32_t, uint32_t unit) { return unit % 8 == 1; };
  const ToyResult result = RunToy(config);
  ASSERT_NO_FATAL_FAILURE(ExpectGood(result));
  const ToyRankResult& rank = result.ranks[0];
  uint64_t most = 0;
  for (const ChunkPlace& chunk : result.layout.chunks)
    most += chunk.unit == 0 || chunk.unit % 8 == 1 ? 2 : 0;  // forward and backward
  const auto fetches = [](const CacheCounters& of) { return of.misses + of.prefetches; };
  EXPECT_LE(fetches(rank.after_step.back()) - fetches(rank.before_step.back()),
            config.micro_batches * most);
  // Nearly all come before they are needed, though most of what lies between them is left out.
  EXPECT_GT(rank.after_step.back().ahead - rank.before_step.back().ahead, 3 * most / 4);
}

TEST(UnitRouting, AnEarlierServerGetsTheZerosThemselves) {
  ToyConfig config = Toy(2, 2, {2}, 4);
  config.takes_zeros = false;
  config.uses = [](uint32_t step, uint32_t batch, uint32_t unit) {
    return Uses(1, 5, step, batch, unit);
  };
  config.blocks = SmallestFor(config) + 2;
  const ToyResult result = RunToy(config);
  ASSERT_NO_FATAL_FAILURE(ExpectGood(result));
  for (const ToyRankResult& rank : result.ranks)
    EXPECT_EQ(rank.planned_groups.back(), Counted(rank, config.steps - 1));
}

TEST(UnitRouting, OnADeviceTheCopiesAreTheSame) {
  for (const bool threads : {false, true}) {
    ToyConfig config = Toy(4, 2, {1}, 8);
    config.on_device = true;
    config.evaluate = false;  // whose last fetches may be counted late
    config.threads = threads;
    config.uses = [](uint32_t step, uint32_t batch, uint32_t unit) {
      return Uses(2, 4, step, batch, unit);
    };
    config.blocks = SmallestFor(config) + 2;
    const ToyResult result = RunToy(config);
    ASSERT_NO_FATAL_FAILURE(ExpectGood(result));
    for (const ToyRankResult& rank : result.ranks) {
      ASSERT_TRUE(rank.followed.back());
      const GroupTraffic planned = SumOf(rank.planned_groups.back()),
                         counted = SumOf(Counted(rank, config.steps - 1));
      EXPECT_EQ(planned.fetched, counted.fetched);
      EXPECT_EQ(planned.handed_in, counted.handed_in);
      EXPECT_EQ(planned.between_ranks(), counted.between_ranks());
    }
  }
}

TEST(UnitRouting, APassThatLeavesItsOrderUsesEverything) {
  ToyConfig config = Toy(6, 2, {2}, 4);
  config.shuffle_second_half = true;
  config.steps = 6;
  config.uses = [](uint32_t step, uint32_t batch, uint32_t unit) {
    return Uses(9, 6, step, batch, unit);
  };
  config.blocks = 1000;
  const ToyResult result = RunToy(config);
  ExpectGood(result);
  EXPECT_GT(result.ranks[0].after_step.back().deviations, 0U);
}

// Sanitizers look at memory and races; the sums are the release build's matter.
#ifdef TIDEPOOL_SANITIZED
constexpr uint64_t kRoutings = 200;
#else
constexpr uint64_t kRoutings = 2000;
#endif

// A routing: what the experts of one layer get in one micro-batch.
TEST(UnitRouting, ManyRoutingsOfTwoToEightRanksEndWithTheRightSums) {
  uint64_t routings = 0;
  for (uint64_t seed = 1; routings < kRoutings; ++seed) {
    SCOPED_TRACE(seed);
    SplitMix64 random(seed);
    const std::vector<uint32_t> worlds{2, 3, 4, 6, 8};
    const uint32_t world = worlds[random.Below(worlds.size())];
    std::vector<uint32_t> sharers;
    for (int layer = 0; layer < 4; ++layer) {
      uint32_t sharing = 1 + static_cast<uint32_t>(random.Below(world));
      while (world % sharing != 0) --sharing;
      sharers.push_back(sharing);
    }
    ToyConfig config = Toy(seed, world, sharers, 24);
    config.steps = 5;
    const uint64_t share = random.Below(17);
    config.uses = [seed, share](uint32_t step, uint32_t batch, uint32_t unit) {
      return Uses(seed, share, step, batch, unit);
    };
    config.cache.prefetch_depth = random.Below(5);
    config.cache.exchange = random.Below(4) == 0 ? Exchange::kReplicated : Exchange::kSharded;
    config.evaluate = random.Below(2) == 0;
    config.blocks = 6 + random.Below(30);
    const ToyResult result = RunToy(config);
    ASSERT_NO_FATAL_FAILURE(ExpectGood(result));
    for (const ToyRankResult& rank : result.ranks)
      EXPECT_EQ(rank.planned_groups.back(), Counted(rank, config.steps - 1));
    routings += 4ULL * config.micro_batches * config.steps;
  }
}

}  // namespace unit_routing_test
}  // namespace tidepool::trainer
