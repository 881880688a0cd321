#include "trainer/advice/limits/run_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/units.h"
#include "tests/trainer/plan/twenty_layers.h"

namespace tidepool::trainer {
namespace run_limits_test {

using ::testing::HasSubstr;

constexpr uint64_t kChunk = kTwentyChunk;  // elements

// A batch takes 4 MiB, and 1.25 x 4 MiB for each sequence.
class Limits : public ::testing::Test {
 protected:
  void SetUp() override {
    layout_ = TwentyLayers();
    profile_.trace = TwentyLayersInTurn();
    task_.choice.layout = &layout_;
    task_.choice.profile = &profile_;
    task_.room_name = "host memory";
    task_.profile = [](uint64_t sequences) -> Result<StepProfile> {
      StepProfile profile;
      profile.buffer_bytes = 4 * kMiB;
      profile.activation_bytes = 4 * kMiB * sequences;
      return profile;
    };
  }
  RunLimits Find(uint64_t room) {
    task_.room_bytes = room;
    auto limits = FindLimits(task_);
    EXPECT_TRUE(limits.ok()) << limits.status().Format();
    return limits.value();
  }

  ChunkLayout layout_;
  StepProfile profile_;
  LimitsTask task_;
};

TEST_F(Limits, TheLargestBatchIsTheLastThatFits) {
  const uint64_t of_ten = (4 + 50) * kMiB;
  EXPECT_EQ(Find(of_ten).batch, 10u);
  EXPECT_EQ(Find(of_ten).batch_bytes, of_ten);
  EXPECT_EQ(Find(of_ten).next_bytes, of_ten + 5 * kMiB);
  EXPECT_EQ(Find(of_ten - 1).batch, 9u);
  EXPECT_EQ(Find(9 * kMiB - 1).batch, 0u);
  task_.batch_step = 4;
  EXPECT_EQ(Find(of_ten).batch, 8u) << "it grows by four";
  EXPECT_EQ(Find(UINT64_MAX).batch, 1u << 16);
}

// Where a batch takes more than the line says, its own profile decides.
TEST_F(Limits, WhatGrowsFasterThanTheLineIsFound) {
  task_.profile = [](uint64_t sequences) -> Result<StepProfile> {
    StepProfile profile;
    profile.buffer_bytes = kMiB * (sequences + (sequences > 7 ? 10 : 0));
    return profile;
  };
  EXPECT_EQ(Find(10 * kMiB).batch, 7u);
}

TEST_F(Limits, WhatGrowsSlowerThanTheLineIsFound) {
  task_.profile = [](uint64_t sequences) -> Result<StepProfile> {
    StepProfile profile;
    profile.buffer_bytes = std::min<uint64_t>(sequences, 2) * 4 * kMiB + sequences * kMiB;
    return profile;
  };
  const RunLimits limits = Find(20 * kMiB);
  EXPECT_EQ(limits.batch, 12u) << "the line through one and two sequences says four";
  EXPECT_EQ(limits.batch_bytes, 20 * kMiB);
  EXPECT_EQ(limits.next_bytes, 21 * kMiB);
}

TEST_F(Limits, ALargerBatchThatWasNotTriedIsNotDenied) {
  const std::string text = DescribeLimits(Find(UINT64_MAX));
  EXPECT_THAT(text, HasSubstr("what fits is --batch 65536: "));
  EXPECT_THAT(text, HasSubstr("(larger ones were not tried)"));
}

// A step moves 40 shards of chunks to and from a rank where every chunk has a block, and one more
// for each block that is missing.
TEST_F(Limits, TheSmallestRcacheLosesLessThanAFiftieth) {
  // As much arithmetic as 460 shards take: with n blocks missing n / 500 is lost.
  profile_.arithmetic = 32.0 * 460 * kChunk;
  RunLimits limits = Find(kGiB);
  EXPECT_EQ(limits.rcache_bytes, layout_.RcacheBytes(0, 11));
  EXPECT_DOUBLE_EQ(limits.loss, 9.0 / 500);
  EXPECT_DOUBLE_EQ(limits.rcache_share, 11.0 / 20);
  EXPECT_TRUE(limits.loss_is_time);
  profile_.arithmetic *= 10;
  EXPECT_EQ(Find(kGiB).rcache_bytes, layout_.RcacheBytes(0, 1)) << "the fewest that run";
  // On a GPU bytes are counted, whatever it computes.
  task_.on_host = false;
  limits = Find(kGiB);
  EXPECT_EQ(limits.rcache_bytes, layout_.RcacheBytes(0, 20));
  EXPECT_FALSE(limits.loss_is_time);
}

TEST_F(Limits, AreToldWithTheFlagsThatMakeThem) {
  const std::string text = DescribeLimits(Find((4 + 50) * kMiB));
  EXPECT_THAT(text, HasSubstr("the largest batch that fits is --batch 10: 54.0 MiB of the 54.0 MiB "
                              "that are left of host memory (the next one: 59.0 MiB)"));
  EXPECT_THAT(text, HasSubstr("the smallest rCache that loses less than 2 % is --rcache "));
  EXPECT_THAT(text, HasSubstr(" % of a step's time)"));
  EXPECT_THAT(DescribeLimits(Find(0)), HasSubstr("no batch fits: one of the smallest takes 9.00 "
                                                 "MiB beside the rCache"));
}

}  // namespace run_limits_test
}  // namespace tidepool::trainer
