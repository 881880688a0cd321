#include "trainer/threads/thread_trial.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/fakes/fake_clock.h"

namespace tidepool::trainer {
namespace thread_trial_test {

// Work that takes a given time with each number of threads.
class ThreadTrialTest : public ::testing::Test {
 protected:
  uint32_t Fastest(uint32_t most, const std::map<uint32_t, int64_t>& took_us) {
    tried_.clear();
    return FastestThreads({.most = most,
                           .use = [this](uint32_t threads) { now_ = threads; },
                           .work =
                               [this, &took_us] {
                                 tried_.insert(now_);
                                 clock_.Advance(1000 * took_us.at(now_));
                               },
                           .clock = &clock_});
  }

  FakeClock clock_;
  uint32_t now_ = 0;  // threads in use
  std::set<uint32_t> tried_;
};

TEST_F(ThreadTrialTest, TakesTheFastestAndLeavesItInUse) {
  EXPECT_EQ(Fastest(8, {{8, 400}, {4, 300}, {2, 350}, {1, 600}}), 4U);
  EXPECT_EQ(now_, 4U);
  EXPECT_EQ(Fastest(8, {{8, 900}, {4, 500}, {2, 200}, {1, 90}}), 1U);
  EXPECT_EQ(now_, 1U);
  EXPECT_EQ(Fastest(2, {{2, 100}, {1, 140}}), 2U);
  EXPECT_EQ(now_, 2U);
}

TEST_F(ThreadTrialTest, OfNumbersThatAreAlikeTheLeastIsTaken) {
  EXPECT_EQ(Fastest(4, {{4, 1000}, {2, 1010}, {1, 1020}}), 1U);
}

TEST_F(ThreadTrialTest, FewerAreNotTriedOnceTheyAreMuchSlower) {
  EXPECT_EQ(Fastest(64, {{64, 100}, {32, 200}}), 64U);
  EXPECT_EQ(tried_, (std::set<uint32_t>{64, 32}));
}

TEST_F(ThreadTrialTest, WorkThatTakesLongIsNotTried) {
  EXPECT_EQ(Fastest(6, {{6, 150'000}}), 6U);
  EXPECT_EQ(now_, 6U);
  EXPECT_EQ(Fastest(1, {}), 1U);
  EXPECT_EQ(tried_.size(), 0U) << "one CPU leaves no choice";
}

TEST_F(ThreadTrialTest, OneSlowRoundDecidesNothing) {
  uint32_t calls = 0;
  const uint32_t fastest =
      FastestThreads({.most = 2,
                      .use = [this](uint32_t threads) { now_ = threads; },
                      .work =
                          [&] {
                            const bool disturbed = now_ == 2 && ++calls < 5;
                            clock_.Advance((disturbed ? 40 : now_ == 2 ? 10 : 18) * kNsPerMs);
                          },
                      .clock = &clock_});
  EXPECT_EQ(fastest, 2U);
}

}  // namespace thread_trial_test
}  // namespace tidepool::trainer
