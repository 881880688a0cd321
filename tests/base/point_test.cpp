#include "base/point.h"

#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/units.h"

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
  EXPECT_EQ(heard,
            (std::vector<std::string>{"test.first", "test.second", "test.first", "test.second"}));
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

TEST(PointDeathTest, AStorePointKillsAtTheNextStoreToItsPageAndAtNoOther) {
  const auto run = [](size_t stored) {
    void* const mapped =
        mmap(nullptr, 3 * kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    auto* const bytes = static_cast<volatile char*>(mapped);
    setenv("TIDEPOOL_KILL_AT", "test.stored:2", 1);
    ArmPointsFromEnvironment();
    for (int i = 0; i < 2; ++i) {
      bytes[kPageBytes] = 1;  // neither before the second hit
      TP_STORE_POINT("test.stored", static_cast<const char*>(mapped) + kPageBytes + 100);
    }
    bytes[stored] = static_cast<char>(bytes[kPageBytes] + 1);  // it may be read
    std::_Exit(0);
  };
  EXPECT_EXIT(run(kPageBytes - 1), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(run(kPageBytes), ::testing::KilledBySignal(SIGKILL), "");
  EXPECT_EXIT(run(2 * kPageBytes - 1), ::testing::KilledBySignal(SIGKILL), "");
  EXPECT_EXIT(run(2 * kPageBytes), ::testing::ExitedWithCode(0), "");
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
