// Whose turn it is: by weight, by priority, and never never.
#include "memserver/jobs/fair_share.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/random.h"

namespace tidepool::memserver {
namespace fair_share_test {

constexpr int64_t kQuantum = 1000;

// Members that always have items of their own size, until told otherwise.
struct Table {
  explicit Table(std::vector<Share> members)
      : shares(std::move(members)), cost(shares.size(), 700) {}

  bool ServeOne() {
    return fair.Serve(
        shares.size(), [this](size_t i) -> Share& { return shares[i]; },
        [this](size_t i) { return cost[i]; });
  }
  void Serve(int items) {
    for (int i = 0; i < items; ++i) ASSERT_TRUE(ServeOne());
  }
  double Ratio(size_t a, size_t b) const {
    return static_cast<double>(shares[a].served) / static_cast<double>(shares[b].served);
  }

  FairShare fair{kQuantum};
  std::vector<Share> shares;
  std::vector<uint64_t> cost;  // of a member's items; 0: it has none
};

TEST(FairShare, ServesByWeight) {
  Table table({{.weight = 2}, {.weight = 1}, {.weight = 5}});
  table.Serve(4000);
  EXPECT_NEAR(table.Ratio(0, 1), 2, 0.02);
  EXPECT_NEAR(table.Ratio(2, 1), 5, 0.05);
}

TEST(FairShare, CountsWhatItemsCostAndNotHowManyThereAre) {
  Table table({{.weight = 1}, {.weight = 1}});
  table.cost = {10, 9000};
  table.Serve(20000);
  EXPECT_NEAR(table.Ratio(0, 1), 1, 0.1);
}

TEST(FairShare, WhoHasNothingSavesNothingUp) {
  Table table({{.weight = 1}, {.weight = 1}});
  table.cost[1] = 0;
  table.Serve(1000);
  EXPECT_EQ(table.shares[1].served, 0u);
  table.cost[1] = 700;
  table.Serve(100);
  EXPECT_LE(table.shares[1].served, 100u * 700 / 2 + 2 * kQuantum);
}

TEST(FairShare, NobodyIsServedWhenNobodyHasAnything) {
  Table table({{.weight = 1}, {.priority = Priority::kLow}});
  table.cost = {0, 0};
  EXPECT_FALSE(table.ServeOne());
  Table empty({});
  EXPECT_FALSE(empty.ServeOne());
}

TEST(FairShare, AHigherPriorityGoesFirstAndALowerOneStillMoves) {
  Table table({{.priority = Priority::kLow},
               {.weight = 3, .priority = Priority::kHigh},
               {.priority = Priority::kNormal}});
  table.Serve(20000);
  const double all =
      static_cast<double>(table.shares[0].served + table.shares[1].served + table.shares[2].served);
  EXPECT_GT(table.Ratio(1, 0), 10);
  EXPECT_GT(static_cast<double>(table.shares[0].served) / all, 0.03);
  EXPECT_GT(static_cast<double>(table.shares[2].served) / all, 0.03);
}

// A piece of an update is several quanta, and so is a large fetch.
TEST(FairShare, ItemsLargerThanAQuantumGiveALowerPriorityNoMore) {
  for (const uint64_t quanta : {7u, 64u, 500u}) {
    Table table({{.priority = Priority::kLow}, {.priority = Priority::kNormal}});
    table.cost = {quanta * kQuantum, quanta * kQuantum};
    table.Serve(20000);
    EXPECT_NEAR(table.Ratio(1, 0), 16, 1) << quanta << " quanta an item";
  }
}

TEST(FairShare, WeightsHoldForItemsLargerThanAQuantum) {
  Table table({{.weight = 2}, {.weight = 1}});
  table.cost = {7 * kQuantum, 7 * kQuantum};
  table.Serve(3000);
  EXPECT_NEAR(table.Ratio(0, 1), 2, 0.02);
}

TEST(FairShare, WhatIsTakenOutOfTurnCounts) {
  Table table({{.weight = 2}, {.weight = 1}});
  const auto out_of_turn = [&table] {
    return table.fair.ServeOutOfTurn(&table.shares[1], [&table] { return table.cost[1]; });
  };
  EXPECT_TRUE(out_of_turn());
  EXPECT_TRUE(out_of_turn());
  EXPECT_FALSE(out_of_turn()) << "it owes more than a round";
  for (int i = 0; i < 4000; ++i) {
    ASSERT_TRUE(table.ServeOne());
    if (i % 3 == 0) out_of_turn();
  }
  EXPECT_NEAR(table.Ratio(0, 1), 2, 0.02);
  table.cost[1] = 0;
  table.Serve(10);
  EXPECT_FALSE(out_of_turn()) << "it has nothing";
}

TEST(FairShare, OutOfTurnALowerPriorityGetsNoMoreThanItIsPromised) {
  Table table({{.priority = Priority::kLow}, {.priority = Priority::kNormal}});
  table.cost[0] = 9 * kQuantum;
  for (int i = 0; i < 20000; ++i) {
    ASSERT_TRUE(table.ServeOne());
    table.fair.ServeOutOfTurn(&table.shares[0], [&table] { return table.cost[0]; });
  }
  EXPECT_NEAR(table.Ratio(1, 0), 16, 1);
  table.cost[1] = 0;
  table.Serve(10);
  EXPECT_TRUE(table.fair.ServeOutOfTurn(&table.shares[0], [] { return 1; }))
      << "nobody is there whom it owes anything";
}

TEST(FairShare, WhoIsAloneOwesNothing) {
  Table table({{.weight = 1}, {.weight = 1}, {.priority = Priority::kLow}});
  table.cost = {0, 500 * kQuantum, 0};
  table.Serve(10);
  EXPECT_EQ(table.shares[1].deficit, 0);
  table.cost = {kQuantum, kQuantum, 0};
  const uint64_t before = table.shares[1].served;
  table.Serve(20);
  EXPECT_NEAR(static_cast<double>(table.shares[1].served - before), 10 * kQuantum, 2 * kQuantum)
      << "what it had before costs it nothing now";
}

TEST(FairShare, AFreedPlaceGoesToTheLowerOnesWhole) {
  Table table(
      {{.weight = 1, .priority = Priority::kLow}, {.weight = 1, .priority = Priority::kHigh}});
  table.cost[1] = 0;
  table.Serve(100);
  EXPECT_EQ(table.shares[0].served, 100u * 700);
}

// Members come, go and change while others are served.
TEST(FairShare, StaysFairToWhoStaysWhileOthersComeAndGo) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SplitMix64 random(seed);
    Table table({{.weight = 2}, {.weight = 1}, {.weight = 1}, {.weight = 7}});
    for (int i = 0; i < 20000; ++i) {
      if (random.Below(10) == 0) table.cost[2] = random.Below(2) * random.Below(3000);
      if (random.Below(10) == 0) table.cost[3] = random.Below(2) * random.Below(9000);
      table.cost[0] = 1 + random.Below(2000);
      table.cost[1] = 1 + random.Below(2000);
      ASSERT_TRUE(table.ServeOne());
    }
    EXPECT_NEAR(table.Ratio(0, 1), 2, 0.1) << "seed " << seed;
  }
}

}  // namespace fair_share_test
}  // namespace tidepool::memserver
