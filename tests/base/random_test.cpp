#include "base/random.h"

#include <array>

#include <gtest/gtest.h>

namespace tidepool {
namespace random_test {

TEST(SplitMix64, GivesThePublishedSequence) {
  SplitMix64 random(1234567);  // the first outputs of Vigna's reference program for this seed
  EXPECT_EQ(random.Next(), 6457827717110365317ULL);
  EXPECT_EQ(random.Next(), 3203168211198807973ULL);
  EXPECT_EQ(random.Next(), 9817491932198370423ULL);
}

TEST(SplitMix64, SameSeedSameNumbers) {
  SplitMix64 a(7), b(7), c(8);
  EXPECT_EQ(a.Next(), b.Next());
  EXPECT_NE(a.Next(), c.Next());
}

TEST(SplitMix64, BelowStaysBelowAndReachesEverything) {
  SplitMix64 random(1);
  std::array<int, 10> seen{};
  for (int i = 0; i < 10'000; ++i) {
    const uint64_t value = random.Below(10);
    ASSERT_LT(value, 10U);
    ++seen[value];
  }
  for (const int count : seen) EXPECT_NEAR(count, 1000, 200);
  EXPECT_EQ(random.Below(1), 0U);
}

TEST(SplitMix64, UnitIsInTheHalfOpenInterval) {
  SplitMix64 random(3);
  double sum = 0;
  for (int i = 0; i < 10'000; ++i) {
    const double value = random.Unit();
    ASSERT_GE(value, 0.0);
    ASSERT_LT(value, 1.0);
    sum += value;
  }
  EXPECT_NEAR(sum / 10'000, 0.5, 0.02);
}

}  // namespace random_test
}  // namespace tidepool
