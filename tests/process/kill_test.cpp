// Trainers die by SIGKILL at every named point and at random times, beside a job that goes on. The
// daemon lives, gives everything back, tells the ranks that are left, and the other job's bits do
// not change.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "tests/process/rig/daemon_fixture.h"

namespace tidepool::testing {
namespace kill_test {

constexpr int64_t kLimit = 30 * kNsPerSecond;
#ifdef TIDEPOOL_SANITIZED
constexpr int64_t kToldNs = 1000 * kNsPerMs;
#else
constexpr int64_t kToldNs = 100 * kNsPerMs;
#endif
const std::vector<std::string> kBesideOptions{"--name", "beside", "--steps", "40", "--chunks", "5"};

bool WaitForSessions(const std::string& socket_dir, int64_t sessions) {
  SteadyClock clock;
  const int64_t limit = clock.NowNs() + kLimit;
  while (HoldingsOf(socket_dir).sessions != sessions) {
    if (clock.NowNs() > limit) return false;
    clock.SleepNs(kNsPerMs);
  }
  return true;
}

class Kill : public ::testing::Test {
 protected:
  // The undisturbed bits, found once, alone on a server of its own.
  static const std::string& UndisturbedOutput() {
    static const std::string output = [] {
      const DaemonInProcess daemon;
      ChildProcess process(ThinCommand(daemon.socket_dir(), kBesideOptions));
      const auto end = process.Wait(kLimit);
      return end && end->exit_code == 0 ? process.Output() : std::string();
    }();
    return output;
  }

  void SetUp() override {
    ASSERT_NE(UndisturbedOutput().find("hash "), std::string::npos);
    daemon_ = std::make_unique<DaemonInProcess>();
    // One run through, so that everything that is opened once is open before the baseline is taken.
    ExpectBesideUndisturbed(StartBeside());
    ASSERT_EQ(WaitForHoldings(daemon_->socket_dir(), kNothing, kLimit), kNothing);
    baseline_descriptors_ = SettledDescriptors();
  }

  void TearDown() override {
    EXPECT_EQ(WaitForHoldings(daemon_->socket_dir(), kNothing, kLimit), kNothing);
    EXPECT_EQ(SettledDescriptors(), baseline_descriptors_);
  }

  std::unique_ptr<ChildProcess> StartBeside() {
    return std::make_unique<ChildProcess>(ThinCommand(daemon_->socket_dir(), kBesideOptions));
  }
  static void ExpectBesideUndisturbed(std::unique_ptr<ChildProcess> beside) {
    const auto end = beside->Wait(kLimit);
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(end->exit_code, 0) << beside->Output();
    EXPECT_EQ(beside->Output(), UndisturbedOutput());
  }

  std::unique_ptr<DaemonInProcess> daemon_;
  size_t baseline_descriptors_ = 0;
};

class KillAtPoint : public Kill, public ::testing::WithParamInterface<const char*> {};

TEST_P(KillAtPoint, HurtsNobody) {
  for (const char* hit : {"1", "2", "4"}) {
    if (std::string(hit) != "1" && std::string(GetParam()).find('*') == std::string::npos) continue;
    std::string point = GetParam();
    if (point.back() == '*') point.pop_back();
    auto beside = StartBeside();
    const TemporaryDirectory directory;
    ChildProcess victim(ThinCommand(daemon_->socket_dir(), {"--name", "victim", "--steps", "20",
                                                            "--save", directory.path()}),
                        {"TIDEPOOL_KILL_AT=" + point + ":" + hit});
    const auto end = victim.Wait(kLimit);
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(end->signal, SIGKILL) << point << " was not hit: " << victim.Output();
    ExpectBesideUndisturbed(std::move(beside));
    EXPECT_EQ(WaitForHoldings(daemon_->socket_dir(), kNothing, kLimit), kNothing) << point;
  }
}

// A star: the point is passed many times in a run, so a later pass is tried as well.
INSTANTIATE_TEST_SUITE_P(EveryClientPoint, KillAtPoint,
                         ::testing::Values("client.connected", "client.hello_sent",
                                           "client.spec_sent", "client.attached",
                                           "client.put_sent*", "client.schedule_sent",
                                           "client.fetch_sent*", "client.gradient_sent*",
                                           "client.end_step_sent*", "client.outcome_taken*",
                                           "client.save_sent", "client.goodbye_sent"),
                         [](const auto& tested) {
                           std::string name;
                           for (const char c : std::string(tested.param)) {
                             if (std::isalnum(static_cast<unsigned char>(c)) != 0) name += c;
                           }
                           return name;
                         });

#ifdef TIDEPOOL_SANITIZED
constexpr int kRandomKills = 15;
#else
constexpr int kRandomKills = 50;
#endif

TEST_F(Kill, AtRandomTimesHurtsNobody) {
  SplitMix64 random(20);
  SteadyClock clock;
  for (int round = 0; round < kRandomKills; ++round) {
    auto beside = StartBeside();
    ChildProcess victim(
        ThinCommand(daemon_->socket_dir(), {"--name", "victim", "--steps", "1000000"}));
    clock.SleepNs(static_cast<int64_t>(random.Below(static_cast<uint64_t>(40 * kNsPerMs))));
    victim.Signal(SIGKILL);
    ASSERT_TRUE(victim.Wait(kLimit).has_value());
    ExpectBesideUndisturbed(std::move(beside));
  }
}

// A rank's death is told by the kernel, not found by a time-out: the others have ended within 100
// ms of it. A machine that is busy may hold them up, but not each time.
TEST_F(Kill, OneOfThreeRanksIsToldToTheOthersAtOnce) {
  SteadyClock clock;
  int64_t least_ns = kLimit;
  for (const char* point :
       {"client.end_step_sent:1", "client.gradient_sent:9", "client.end_step_sent:3"}) {
    std::vector<std::unique_ptr<ChildProcess>> ranks;
    for (const char* rank : {"0", "1", "2"}) {
      std::vector<std::string> environment;
      if (std::string(rank) == "1") environment.push_back(std::string("TIDEPOOL_KILL_AT=") + point);
      ranks.push_back(std::make_unique<ChildProcess>(
          ThinCommand(daemon_->socket_dir(), {"--name", "ranks", "--world", "3", "--rank", rank,
                                              "--elements", "4800", "--steps", "100000"}),
          environment));
    }
    const auto killed = ranks[1]->Wait(kLimit);
    ASSERT_TRUE(killed.has_value());
    EXPECT_EQ(killed->signal, SIGKILL) << ranks[1]->Output();
    const int64_t killed_ns = clock.NowNs();
    for (const size_t left : {0, 2}) {
      const auto end = ranks[left]->Wait(kPromptNs);
      ASSERT_TRUE(end.has_value()) << "rank " << left << " was not told at once";
      EXPECT_EQ(end->exit_code, 1) << ranks[left]->Output();
      EXPECT_NE(ranks[left]->Output().find("TP3012"), std::string::npos) << ranks[left]->Output();
    }
    least_ns = std::min(least_ns, clock.NowNs() - killed_ns);
    EXPECT_EQ(WaitForHoldings(daemon_->socket_dir(), kNothing, kLimit), kNothing);
  }
  EXPECT_LT(least_ns, kToldNs) << "from the death of one to the end of the last";
}

TEST_F(Kill, AForkedChildThatKeepsTheSocketHidesNoDeath) {
  // A data-loading worker that a trainer forks inherits its connection: the socket stays open when
  // the trainer dies.
  ChildProcess victim(ThinCommand(daemon_->socket_dir(),
                                  {"--name", "forked", "--steps", "1000000", "--fork-child"}));
  ASSERT_TRUE(victim.WaitForOutput("child ", kLimit)) << victim.Output();
  const pid_t child =
      static_cast<pid_t>(std::stol(victim.Output().substr(victim.Output().find("child ") + 6)));
  ASSERT_TRUE(WaitForSessions(daemon_->socket_dir(), 1));
  victim.Signal(SIGKILL);
  EXPECT_EQ(WaitForHoldings(daemon_->socket_dir(), kNothing, 5 * kNsPerSecond), kNothing);
  EXPECT_EQ(kill(child, SIGKILL), 0)
      << "the child must have outlived the trainer for this test to mean something";
}

TEST(KillAndRestart, AJobUnderLeaseGoesOnAtItsLastSealedStepWithTheSameBits) {
  memserver::ServerOptions server = DaemonInProcess::SmallServer();
  server.settings.times.lease_ns = 60 * kNsPerSecond;
  const DaemonInProcess daemon(server);
  const std::vector<std::string> options{"--name", "kept", "--steps", "20"};
  ChildProcess whole(ThinCommand(daemon.socket_dir(), options));
  ASSERT_EQ(whole.Wait(kLimit)->exit_code, 0);
  const std::string expected = whole.Output().substr(0, whole.Output().find(" from"));
  for (const char* point : {"client.fetch_sent:30", "client.gradient_sent:50",
                            "client.end_step_sent:7", "client.outcome_taken:61"}) {
    ChildProcess victim(ThinCommand(daemon.socket_dir(), options),
                        {std::string("TIDEPOOL_KILL_AT=") + point});
    ASSERT_EQ(victim.Wait(kLimit)->signal, SIGKILL);
    ASSERT_TRUE(WaitForSessions(daemon.socket_dir(), 0)) << "the death was not noticed";
    ChildProcess heir(ThinCommand(daemon.socket_dir(), options));
    const auto end = heir.Wait(kLimit);
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(end->exit_code, 0) << heir.Output();
    EXPECT_EQ(heir.Output().substr(0, heir.Output().find(" from")), expected) << point;
    EXPECT_EQ(heir.Output().find("from 0"), std::string::npos)
        << "it began anew: " << heir.Output();
  }
  EXPECT_EQ(WaitForHoldings(daemon.socket_dir(), kNothing, kLimit), kNothing);
}

}  // namespace kill_test
}  // namespace tidepool::testing
