#include "trainer/threads/short_waits.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <thread>

#include "base/clock.h"
#include "trainer/threads/cpu_watch.h"

namespace tidepool::trainer {
namespace short_waits_test {

// The compiler's own libgomp stands for the one that LibTorch brings.
class ShortWaitsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    ASSERT_NE(dlopen("libgomp.so.1", RTLD_NOW | RTLD_GLOBAL), nullptr) << dlerror();
  }
  ShortWaitsTest() { ForgetTheUsersWord(); }
  ~ShortWaitsTest() override { ForgetTheUsersWord(); }
  static void ForgetTheUsersWord() {
    for (const char* name : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}) unsetenv(name);
  }

  const SteadyClock clock_{};

  static int64_t Threads() {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return std::distance(begin(tasks), end(tasks));
  }
  // Their number, when it has come to `expected`; else the last one, after ten seconds.
  static int64_t ThreadsAfter(int64_t expected) {
    SteadyClock clock;
    for (int tries = 0; tries < 1000 && Threads() != expected; ++tries)
      clock.SleepNs(10 * kNsPerMs);
    return Threads();
  }
};

TEST_F(ShortWaitsTest, ATeamOfMoreThreadsThanCpusSleepsWhileOneLives) {
  ASSERT_TRUE(ShortWaits::Possible());
  const int64_t cpus = std::max(1U, std::thread::hardware_concurrency());
  const int64_t before = Threads();

  for (int times = 0; times < 3; ++times) {
    auto short_waits = std::make_unique<ShortWaits>();
    EXPECT_EQ(ThreadsAfter(before + cpus + 1), before + cpus + 1);
    short_waits.reset();
    EXPECT_EQ(ThreadsAfter(before), before);
  }
}

TEST_F(ShortWaitsTest, TheUsersOwnWordOnWaitingIsLeftAlone) {
  for (const char* name : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}) {
    setenv(name, "0", 1);
    EXPECT_FALSE(ShortWaits::Possible()) << name;
    EXPECT_EQ(CpuWatch::Start(2, &clock_), nullptr);
    unsetenv(name);
  }
}

TEST_F(ShortWaitsTest, OneComputeThreadIsNotWatched) {
  EXPECT_EQ(CpuWatch::Start(1, &clock_), nullptr);
  EXPECT_NE(CpuWatch::Start(2, &clock_), nullptr);
}

}  // namespace short_waits_test
}  // namespace tidepool::trainer
