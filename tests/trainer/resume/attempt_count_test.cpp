#include "trainer/run/resuming/attempt_count.h"

#include <gtest/gtest.h>

namespace tidepool::trainer {
namespace attempt_count_test {

// How many attempts that end at `sealed` are followed by another one; `most` is far beyond what may
// be.
uint32_t AttemptsUntilTheLast(AttemptCount* count, Version sealed) {
  constexpr uint32_t kMost = 1000;
  uint32_t attempts = 1;
  while (count->MayTryAgain(sealed) && attempts < kMost) ++attempts;
  return attempts;
}

TEST(AttemptCountTest, ARunThatSealsNothingEnds) {
  AttemptCount count;
  count.BeginsAt(0);
  EXPECT_EQ(AttemptsUntilTheLast(&count, 0), kFruitlessAttempts);
}

// As where each attempt ends while the rank attaches: what the run knows as sealed never changes
// any more.
TEST(AttemptCountTest, OneThatSealedOnceAndThenNeverComesToASlotEnds) {
  AttemptCount count;
  count.BeginsAt(0);
  EXPECT_TRUE(count.MayTryAgain(7));
  EXPECT_EQ(AttemptsUntilTheLast(&count, 7), kFruitlessAttempts);
}

TEST(AttemptCountTest, WhatEarlierProcessesHaveSealedIsNoProgress) {
  AttemptCount count;
  count.BeginsAt(40);
  EXPECT_EQ(AttemptsUntilTheLast(&count, 40), kFruitlessAttempts);
}

TEST(AttemptCountTest, EachNewStepGivesAllAttemptsBack) {
  AttemptCount count;
  count.BeginsAt(0);
  for (Version sealed = 1; sealed < 50; ++sealed) {
    for (uint32_t fruitless = 1; fruitless < kFruitlessAttempts; ++fruitless)
      ASSERT_TRUE(count.MayTryAgain(sealed - 1));
    ASSERT_TRUE(count.MayTryAgain(sealed));
  }
}

TEST(AttemptCountTest, TheProgramThatReplacesThisOneGoesOnCounting) {
  AttemptCount count;
  count.BeginsAt(3);
  uint32_t attempts = 1;
  while (count.MayTryAgain(3) && attempts < 1000) {
    ++attempts;
    count = AttemptCount(count.Text());
    count.BeginsAt(3);
  }
  EXPECT_EQ(attempts, kFruitlessAttempts);
}

TEST(AttemptCountTest, AJobThatIsBegunAnewCountsItsStepsFromZero) {
  AttemptCount count;
  count.BeginsAt(100);
  for (uint32_t fruitless = 1; fruitless < kFruitlessAttempts; ++fruitless)
    ASSERT_TRUE(count.MayTryAgain(100));
  count.BeginsAt(0);
  EXPECT_TRUE(count.MayTryAgain(1));
  EXPECT_EQ(AttemptsUntilTheLast(&count, 1), kFruitlessAttempts);
}

TEST(AttemptCountTest, TextsOfOthersCountFromZero) {
  for (const char* text :
       {"", ":", "1", "1:", ":3", "5:3", "-1:3", "1:3x", "99999999999999999999:0", "x"}) {
    SCOPED_TRACE(text);
    EXPECT_EQ(AttemptCount(text).Text(), "0:0");
  }
  EXPECT_EQ(AttemptCount("2:17").Text(), "2:17");
}

}  // namespace attempt_count_test
}  // namespace tidepool::trainer
