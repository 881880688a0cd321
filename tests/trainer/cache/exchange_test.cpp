// How ranks share a chunk's bytes changes what is moved, and nothing else: weights stay right, and
// every count is the plan's, by group and kind.
#include <gtest/gtest.h>

#include "tests/trainer/cache/toy_run.h"
#include "trainer/plan/traffic.h"

namespace tidepool::trainer {
namespace exchange_test {

struct Case {
  uint32_t world = 1;
  std::vector<std::vector<Rank>> groups = {};  // behind the first, of all ranks
  bool on_device = false, threads = false;
};

ToyConfig Toy(const Case& c, Exchange exchange) {
  ToyConfig config;
  config.model = MakeToyModel(c.world, 5, static_cast<uint32_t>(c.groups.size()) + 1);
  config.layout.world = c.world;
  config.layout.chunk_bytes = 192 * 4;
  config.layout.data_groups.emplace_back();
  for (Rank rank = 0; rank < c.world; ++rank) config.layout.data_groups[0].push_back(rank);
  for (const auto& group : c.groups) config.layout.data_groups.push_back(group);

  config.steps = 3;
  config.micro_batches = 2;
  config.on_device = c.on_device;
  config.threads = c.threads;
  config.cache.exchange = exchange;
  config.delay_max = 7;
  config.delay_seed = c.world;
  return config;
}

// What the last step of a rank has counted.
std::vector<GroupTraffic> Counted(const ToyRankResult& rank) {
  return Difference(rank.after_step.back().traffic, rank.before_step.back().traffic);
}

// What its groups' collectives have sent in the last step; evaluations lie between two steps.
uint64_t Sent(const std::vector<std::vector<uint64_t>>& sent, size_t group) {
  return sent.back()[group] - sent[sent.size() - 2][group];
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (uint32_t world = 1; world <= 4; ++world) cases.push_back({world, {}, false, false});
  // Experts: groups of two ranks, and of one.
  cases.push_back({4, {{0, 1}, {2, 3}}, false, false});
  cases.push_back({2, {{0}, {1}}, false, false});
  cases.push_back({3, {}, true, false});
  cases.push_back({2, {}, true, true});
  return cases;
}

TEST(Exchange, EveryCountIsThePlansByGroupAndKind) {
  for (const Case& c : Cases()) {
    for (const Exchange exchange : {Exchange::kSharded, Exchange::kReplicated}) {
      for (const uint64_t more : {1u, 100u}) {
        SCOPED_TRACE("world " + std::to_string(c.world) + ", groups " +
                     std::to_string(c.groups.size()) + ", device " + std::to_string(c.on_device) +
                     ", replicated " + std::to_string(exchange == Exchange::kReplicated) +
                     ", blocks + " + std::to_string(more));
        ToyConfig config = Toy(c, exchange);
        config.evaluate = false;
        config.blocks = SmallestFor(config) + more;
        const ToyResult result = RunToy(config);
        ASSERT_NO_FATAL_FAILURE(ExpectGood(result));

        for (const ToyRankResult& rank : result.ranks) {
          const std::vector<GroupTraffic> counted = Counted(rank);
          EXPECT_EQ(counted, rank.planned_groups.back());
          for (size_t group = 0; group < counted.size(); ++group) {
            const GroupTraffic& bytes = counted[group];
            // An all-reduce is a reduce-scatter and an all-gather.
            EXPECT_EQ(Sent(rank.sent_in_gathers, group), bytes.gathered + bytes.reduced / 2);
            EXPECT_EQ(Sent(rank.sent_in_reductions, group), bytes.scattered + bytes.reduced / 2);
          }
        }
      }
    }
  }
}

TEST(Exchange, ReplicatedRanksGatherNothingAndShardedOnesReduceToNobody) {
  for (const uint32_t world : {2u, 4u}) {
    ToyConfig config = Toy({.world = world}, Exchange::kReplicated);
    config.micro_batches = 1;
    config.evaluate = false;
    config.blocks = 100;
    const GroupTraffic ddp = SumOf(Counted(RunToy(config).ranks[0]));
    config.cache.exchange = Exchange::kSharded;
    const GroupTraffic zero2 = SumOf(Counted(RunToy(config).ranks[0]));

    EXPECT_EQ(ddp.gathered + ddp.scattered, 0u);
    EXPECT_EQ(zero2.reduced, 0u);
    EXPECT_EQ(ddp.fetched, world * zero2.fetched) << "each rank brings what all have brought";
    EXPECT_EQ(ddp.handed_in, zero2.handed_in);
    EXPECT_EQ(ddp.reduced, 2 * zero2.scattered);
    EXPECT_EQ(zero2.gathered, zero2.scattered);
  }
}

// Frozen chunks have no gradient, and evaluations fetch whole chunks too.
TEST(Exchange, WeightsAreRightWithFrozenChunksAndEvaluations) {
  for (const bool on_device : {false, true}) {
    ToyConfig config = Toy({.world = 3, .on_device = on_device}, Exchange::kReplicated);
    FreezeEveryThird(&config.model, 1);
    config.blocks = SmallestFor(config) + 1;
    ASSERT_NO_FATAL_FAILURE(ExpectGood(RunToy(config)));
  }
}

}  // namespace exchange_test
}  // namespace tidepool::trainer
