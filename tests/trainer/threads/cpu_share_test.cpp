#include "trainer/threads/cpu_share.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/clock.h"

namespace tidepool::trainer {
namespace cpu_share_test {

// A thread that is always ready to run, looked at ten times a second.
class CpuShareTest : public ::testing::Test {
 protected:
  static constexpr int64_t kLookNs = 100 * kNsPerMs;

  // For so long the thread waits for this share of the time. True when the CPUs counted as shared
  // at the end.
  bool Pass(int64_t duration_ns, double waits) {
    for (const int64_t end = now_ns_ + duration_ns; now_ns_ < end;) {
      now_ns_ += kLookNs;
      waited_ns_ += static_cast<int64_t>(waits * kLookNs);
      const bool before = share_.shared();
      const bool after =
          share_.Look(now_ns_, {.ran_ns = now_ns_ - waited_ns_, .waited_ns = waited_ns_});
      tries_ += before && !after ? 1 : 0;
    }
    return share_.shared();
  }

  CpuShare share_;
  int64_t now_ns_ = 5 * kNsPerSecond, waited_ns_ = 7 * kNsPerSecond;
  int tries_ = 0;  // to go on as if alone
};

TEST_F(CpuShareTest, WhoeverIsAloneIsNeverToldOtherwise) {
  EXPECT_FALSE(Pass(600 * kNsPerSecond, 0));
  EXPECT_FALSE(Pass(600 * kNsPerSecond, 0.15)) << "an update of its own beside the forward";
}

TEST_F(CpuShareTest, AnotherJobIsSeenWithinHalfASecond) {
  EXPECT_FALSE(Pass(60 * kNsPerSecond, 0));
  EXPECT_TRUE(Pass(kNsPerSecond / 2, 0.5));
}

TEST_F(CpuShareTest, WaitsBeforeTheFirstLookDoNotCount) {
  EXPECT_FALSE(share_.Look(now_ns_, {.ran_ns = 0, .waited_ns = waited_ns_}));
  EXPECT_FALSE(share_.Look(now_ns_ + CpuShare::kWindowNs, {.ran_ns = 0, .waited_ns = waited_ns_}));
}

TEST_F(CpuShareTest, StaysSharedWhileTheThreadStillWaits) {
  ASSERT_TRUE(Pass(kNsPerSecond, 0.5));
  EXPECT_TRUE(Pass(600 * kNsPerSecond, 0.15));
  EXPECT_EQ(tries_, 0);
}

TEST_F(CpuShareTest, WhenTheOtherJobEndsItIsAloneAgain) {
  ASSERT_TRUE(Pass(kNsPerSecond, 0.5));
  EXPECT_FALSE(Pass(2 * kNsPerSecond, 0));
  EXPECT_FALSE(Pass(600 * kNsPerSecond, 0));
}

// With short waits the thread gets its CPU whenever it wants it, and looks alone; without, it does
// not.
TEST_F(CpuShareTest, TriesThatShowOthersBecomeRare) {
  ASSERT_TRUE(Pass(kNsPerSecond, 0.5));
  const int64_t begin_ns = now_ns_;
  int64_t spinning_ns = 0;
  while (now_ns_ - begin_ns < 600 * kNsPerSecond) {
    Pass(kLookNs, share_.shared() ? 0 : 0.5);
    spinning_ns += share_.shared() ? 0 : kLookNs;
  }
  EXPECT_GE(tries_, 9) << "the others may have ended";
  EXPECT_LE(tries_, 16);
  EXPECT_LT(spinning_ns, 6 * kNsPerSecond) << "one in a hundred";
}

TEST_F(CpuShareTest, ATryThatLastedIsForgottenAsAFault) {
  for (int times = 0; times < 8; ++times) {
    ASSERT_TRUE(Pass(kNsPerSecond, 0.5));
    ASSERT_FALSE(Pass(300 * kNsPerSecond, 0));
  }
  ASSERT_TRUE(Pass(kNsPerSecond, 0.5));
  EXPECT_FALSE(Pass(2 * kNsPerSecond, 0)) << "held for a second, as at first";
}

TEST(CpuAccount, OfThisThreadGrowsWithItsWork) {
  const auto before = CpuAccountOf(gettid());
  ASSERT_TRUE(before) << "the kernel keeps no account (CONFIG_SCHED_INFO)";
  const SteadyClock clock;
  for (const int64_t end = clock.NowNs() + 30 * kNsPerMs; clock.NowNs() < end;) {
  }
  const auto after = CpuAccountOf(gettid());
  ASSERT_TRUE(after);
  EXPECT_GT(after->ran_ns + after->waited_ns, before->ran_ns + before->waited_ns);
}

TEST(CpuAccount, OfAThreadThatIsNotHereIsNone) {
  EXPECT_FALSE(CpuAccountOf(0));
}

}  // namespace cpu_share_test
}  // namespace tidepool::trainer
