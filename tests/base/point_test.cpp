#include "base/point.h"

#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace tidepool {
namespace point_test {

void PassPoints(int times) {
  for (int i = 0; i < times; ++i) {
    TP_POINT("test.first");
    TP_POINT("test.second");
  }
}

TEST(Point, AHookHearsEveryPointInOrderAndNothingAfterwards) {
  std::vector<std::string> heard;
  SetPointHook([&heard](const char* name) { heard.emplace_back(name); });
  PassPoints(2);
  SetPointHook({});
  PassPoints(1);
  EXPECT_EQ(heard, (std::vector<std::string>{"test.first", "test.second", "test.first", "test.second"}));
}

TEST(Point, IsOffByDefault) {
  EXPECT_FALSE(points_armed.load());
}

TEST(PointDeathTest, KillsAtTheFirstHit) {
  EXPECT_EXIT(
      {
        setenv("TIDEPOOL_KILL_AT", "test.second", 1);
        ArmPointsFromEnvironment();
        PassPoints(1);
        std::_Exit(0);
      },
      ::testing::KilledBySignal(SIGKILL), "");
}

TEST(PointDeathTest, KillsAtTheThirdHitAndNotBefore) {
  const auto run = [](int times) {
    setenv("TIDEPOOL_KILL_AT", "test.first:3", 1);
    ArmPointsFromEnvironment();
    PassPoints(times);
    std::_Exit(0);
  };
  EXPECT_EXIT(run(2), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(run(3), ::testing::KilledBySignal(SIGKILL), "");
}

TEST(PointDeathTest, StopsWhereItIsTold) {
  const pid_t child = fork();
  if (child == 0) {
    setenv("TIDEPOOL_STOP_AT", "test.second:2", 1);
    ArmPointsFromEnvironment();
    PassPoints(2);
    std::_Exit(7);
  }
  int state = 0;
  ASSERT_EQ(waitpid(child, &state, WUNTRACED), child);
  EXPECT_TRUE(WIFSTOPPED(state)) << state;
  kill(child, SIGCONT);
  ASSERT_EQ(waitpid(child, &state, 0), child);
  EXPECT_EQ(WEXITSTATUS(state), 7) << "it goes on";
}

TEST(PointDeathTest, AnotherNameIsPassed) {
  EXPECT_EXIT(
      {
        setenv("TIDEPOOL_KILL_AT", "test.other", 1);
        ArmPointsFromEnvironment();
        PassPoints(3);
        std::_Exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace point_test
}  // namespace tidepool
