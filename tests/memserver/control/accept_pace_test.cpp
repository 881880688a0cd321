#include "memserver/control/bounds/accept_pace.h"

#include <gtest/gtest.h>

namespace tidepool::memserver {
namespace accept_pace_test {

void Break(AcceptPace* pace, int64_t clients, int64_t now_ns) {
  for (int64_t i = 0; i < clients; ++i) pace->NoteBroken(now_ns);
}

TEST(AcceptPace, IsSlowAfterABurstAndForgetsIt) {
  AcceptPace pace;
  EXPECT_FALSE(pace.slow(0));
  Break(&pace, AcceptPace::kBurst, 0);
  EXPECT_FALSE(pace.slow(0)) << "a burst is allowed";
  Break(&pace, 1, 0);
  EXPECT_TRUE(pace.slow(0));
  EXPECT_FALSE(pace.slow(AcceptPace::kForgottenNs));
}

TEST(AcceptPace, MayBeSomewhatSlowForEverAndIsNeverSlowForLong) {
  AcceptPace pace;
  int64_t now_ns = 0;
  for (int64_t client = 0; client < 1000; ++client, now_ns += AcceptPace::kForgottenNs) {
    Break(&pace, 1, now_ns);
    ASSERT_FALSE(pace.slow(now_ns)) << "as many as are forgotten";
  }
  Break(&pace, 1'000'000, now_ns);
  EXPECT_TRUE(pace.slow(now_ns + (AcceptPace::kBurst - 1) * AcceptPace::kForgottenNs));
  EXPECT_FALSE(pace.slow(now_ns + AcceptPace::kBurst * AcceptPace::kForgottenNs));
}

}  // namespace accept_pace_test
}  // namespace tidepool::memserver
