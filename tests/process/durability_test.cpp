// What docs/durability.md promises, with whole processes, one test a promise: who may die, what goes on, and what is said where it cannot.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "shm/socket_path.h"
#include "tests/process/daemon_fixture.h"
#include "tests/process/memserver_process.h"

namespace tidepool::testing {
namespace {

constexpr int64_t kLimit = 30 * kNsPerSecond;
// A rank that is ten times slower must still find the time to come back between two restarts.
#ifdef TIDEPOOL_SANITIZED
constexpr int kRestarts = 4;
constexpr int64_t kBetweenRestartsNs = kNsPerSecond;
constexpr int kAttachRounds = 2;
#else
constexpr int kRestarts = 30;
constexpr int64_t kBetweenRestartsNs = 0;
constexpr int kAttachRounds = 8;
#endif

using Process = std::unique_ptr<ChildProcess>;

pid_t PidIn(const std::string& text, const std::string& key) {
  const size_t at = text.rfind(key);
  return at == std::string::npos ? 0 : static_cast<pid_t>(std::stol(text.substr(at + key.size())));
}

// Flags with values; those of `more` replace the others.
std::vector<std::string> WithDefaults(const std::vector<std::pair<std::string, std::string>>& defaults,
                                      const std::vector<std::string>& more) {
  std::vector<std::string> flags = more;
  for (const auto& [flag, value] : defaults) {
    if (std::find(more.begin(), more.end(), flag) == more.end()) flags.insert(flags.end(), {flag, value});
  }
  return flags;
}

class Durability : public ::testing::Test {
 protected:
  Process Serve(const std::vector<std::string>& more = {}, const std::vector<std::string>& environment = {}) {
    const auto flags = WithDefaults({{"--keeper", "process"}, {"--lease", "20s"}, {"--pool", "8MiB"}}, more);
    auto server = std::make_unique<ChildProcess>(MemserverCommand(directory_.path(), flags), environment);
    EXPECT_TRUE(server->WaitForOutput("\"ready\"", kLimit)) << server->Output();
    return server;
  }
  Process Train(const std::vector<std::string>& more = {}) {
    const auto flags = WithDefaults({{"--name", "job"}, {"--steps", "60"}, {"--pause-ms", "2"}, {"--server-timeout-ms", "20000"}}, more);
    return std::make_unique<ChildProcess>(ThinCommand(directory_.path(), flags));
  }
  // The weights' hash of an undisturbed run of the same options.
  std::string UndisturbedHash() {
    const DaemonInProcess daemon;
    ChildProcess process(ThinCommand(daemon.socket_dir(), {"--name", "job", "--steps", "60"}));
    EXPECT_EQ(process.Wait(kLimit)->exit_code, 0) << process.Output();
    return HashIn(process.Output());
  }
  static std::string HashIn(const std::string& output) {
    const size_t at = output.find("hash ");
    return at == std::string::npos ? "" : output.substr(at, output.find(' ', at + 5) - at);
  }
  pid_t ServerPid() const {
    std::ifstream lock(shm::LockFilePath(directory_.path()));
    pid_t pid = 0;
    lock >> pid;
    return pid;
  }
  bool WaitForFilesToGo() {
    SteadyClock clock;
    const int64_t end = clock.NowNs() + kLimit;
    while (!std::filesystem::is_empty(directory_.path())) {
      if (clock.NowNs() > end) return false;
      clock.SleepNs(kNsPerMs);
    }
    return true;
  }
  void ExpectGone(pid_t pid) {
    SteadyClock clock;
    const int64_t end = clock.NowNs() + kLimit;
    while (std::ifstream("/proc/" + std::to_string(pid) + "/cmdline").peek() != EOF && clock.NowNs() < end) clock.SleepNs(kNsPerMs);
    EXPECT_EQ(std::ifstream("/proc/" + std::to_string(pid) + "/cmdline").peek(), EOF) << "process " << pid << " lives";
  }

  void TearDown() override { KillDaemon(directory_.path()); }

  const TemporaryDirectory directory_;
};

TEST_F(Durability, TheKeeperStartsAKilledServerAgainAndTheTrainerGoesOn) {
  const std::string expected = UndisturbedHash();
  const Process first = Serve();
  const Process trainer = Train({"--norms"});
  for (const char* step : {"norm 5 ", "norm 25 ", "norm 45 "}) {
    ASSERT_TRUE(trainer->WaitForOutput(step, kLimit)) << trainer->Output();
    const pid_t server = ServerPid();
    ASSERT_EQ(kill(server, SIGKILL), 0);
    SteadyClock clock;
    const int64_t end = clock.NowNs() + kLimit;
    while (ServerPid() == server && clock.NowNs() < end) clock.SleepNs(kNsPerMs);
  }
  ASSERT_EQ(trainer->Wait(kLimit)->exit_code, 0) << trainer->Output();
  EXPECT_EQ(HashIn(trainer->Output()), expected);
  const pid_t last = ServerPid();
  kill(last, SIGINT);
  EXPECT_TRUE(WaitForFilesToGo()) << "an orderly end leaves nothing";
  ExpectGone(last);
}

TEST_F(Durability, ServerAndKeeperKilledTogetherLoseTheJobAndSaySo) {
  const Process first = Serve();
  const Process trainer = Train({"--norms", "--steps", "100000"});
  ASSERT_TRUE(trainer->WaitForOutput("norm 5 ", kLimit)) << trainer->Output();
  const pid_t keeper = PidIn(first->Output(), "\"keeper_pid\":");
  ASSERT_GT(keeper, 0) << first->Output();
  kill(keeper, SIGKILL);
  first->Signal(SIGKILL);
  ASSERT_TRUE(first->Wait(kLimit).has_value());
  const Process next = Serve();
  const auto ended = trainer->Wait(kLimit);
  ASSERT_TRUE(ended.has_value()) << trainer->Output();
  EXPECT_EQ(ended->exit_code, 7) << trainer->Output();
  EXPECT_NE(trainer->Output().find("TP3014"), std::string::npos) << trainer->Output();
  EXPECT_EQ(HoldingsOf(directory_.path()), kNothing) << "the next daemon starts clean";
  next->Signal(SIGINT);
  EXPECT_EQ(next->Wait(kLimit)->exit_code, 0);
  EXPECT_TRUE(WaitForFilesToGo());
}

// The keeper dies while it hands the memory to the next server, and while it starts it: with nobody left to hold it, the memory is gone,
// and the next server starts clean at once.
TEST_F(Durability, AKeeperThatDiesAtTheHandOverLeavesACleanStart) {
  for (const char* point : {"keeper.given:1", "keeper.respawning:1"}) {
    const bool respawns = std::string(point) == "keeper.respawning:1";
    const Process first =
        Serve(respawns ? std::vector<std::string>{} : std::vector<std::string>{"--no-respawn"}, {std::string("TIDEPOOL_KILL_AT=") + point});
    const pid_t keeper = PidIn(first->Output(), "\"keeper_pid\":");
    first->Signal(SIGKILL);
    ASSERT_TRUE(first->Wait(kLimit).has_value());
    const Process next = Serve();
    ExpectGone(keeper);
    EXPECT_EQ(HoldingsOf(directory_.path()), kNothing) << point;
    next->Signal(SIGINT);
    EXPECT_EQ(next->Wait(kLimit)->exit_code, 0) << next->Output();
    EXPECT_TRUE(WaitForFilesToGo()) << point;
  }
}

TEST_F(Durability, ARollingRestartUnderLoadFailsNoStep) {
  const std::string expected = UndisturbedHash();
  Process server = Serve({"--no-respawn"});
  SplitMix64 random(7);
  SteadyClock clock;
  Process trainer = Train({"--norms"});
  ASSERT_TRUE(trainer->WaitForOutput("norm 1 ", kLimit)) << "there is a job to hand over";
  for (int restart = 0; restart < kRestarts; ++restart) {
    clock.SleepNs(kBetweenRestartsNs + static_cast<int64_t>(random.Below(static_cast<uint64_t>(15 * kNsPerMs))));
    const int64_t begin = clock.NowNs();
    server->Signal(SIGTERM);
    const auto ended = server->Wait(kLimit);
    ASSERT_TRUE(ended.has_value());
    EXPECT_EQ(ended->exit_code, 0) << server->Output();
    EXPECT_LT(clock.NowNs() - begin, kPromptNs) << "it drains within two seconds";
    server = Serve({"--no-respawn"});
    if (const auto done = trainer->Wait(0)) {
      ASSERT_EQ(done->exit_code, 0) << trainer->Output();
      EXPECT_EQ(HashIn(trainer->Output()), expected);
      trainer = Train({"--norms"});
      ASSERT_TRUE(trainer->WaitForOutput("norm 1 ", kLimit)) << trainer->Output();
    }
  }
  ASSERT_EQ(trainer->Wait(kLimit)->exit_code, 0) << trainer->Output();
  EXPECT_EQ(HashIn(trainer->Output()), expected);
  server->Signal(SIGINT);
  EXPECT_EQ(server->Wait(kLimit)->exit_code, 0);
  EXPECT_TRUE(WaitForFilesToGo());
}

// SIGTERM finds ranks at any point of their attach: with a job that is open, with one that is not yet, and with none.
TEST_F(Durability, RanksThatAttachAsTheServerIsReplacedAttachToTheNextOne) {
  SplitMix64 random(11);
  SteadyClock clock;
  Process server = Serve({"--no-respawn"});
  for (int round = 0; round < kAttachRounds; ++round) {
    const std::vector<std::string> two{"--world", "2", "--steps", "3", "--rank"};
    const auto rank = [&](const char* name) {
      std::vector<std::string> flags = two;
      flags.emplace_back(name);
      return Train(flags);
    };
    const Process first = rank("0"), second = rank("1");
    clock.SleepNs(static_cast<int64_t>(random.Below(static_cast<uint64_t>(20 * kNsPerMs))));
    server->Signal(SIGTERM);
    const auto ended = server->Wait(kLimit);
    ASSERT_TRUE(ended.has_value());
    EXPECT_EQ(ended->exit_code, 0) << server->Output();
    server = Serve({"--no-respawn"});
    for (const Process* process : {&first, &second}) ASSERT_EQ((*process)->Wait(kLimit)->exit_code, 0) << (*process)->Output();
  }
  server->Signal(SIGINT);
  EXPECT_EQ(server->Wait(kLimit)->exit_code, 0);
  EXPECT_TRUE(WaitForFilesToGo());
}

TEST_F(Durability, AnOrderlyEndEndsJobsAndKeeperAtOnce) {
  const Process server = Serve();
  const Process trainer = Train({"--norms", "--steps", "100000"});
  ASSERT_TRUE(trainer->WaitForOutput("norm 5 ", kLimit));
  const pid_t keeper = PidIn(server->Output(), "\"keeper_pid\":");
  server->Signal(SIGINT);
  EXPECT_EQ(server->Wait(kLimit)->exit_code, 0) << server->Output();
  ExpectGone(keeper);
  EXPECT_NE(trainer->Wait(kLimit)->exit_code, 0) << "the trainer is told, not left waiting";
  EXPECT_NE(trainer->Output().find("TP3008"), std::string::npos) << trainer->Output();
  EXPECT_TRUE(WaitForFilesToGo());
}

TEST_F(Durability, AServerThatStaysAwayEndsTheTrainerWith75AndTheJobIsKept) {
  Process server = Serve({"--no-respawn"});
  const Process trainer = Train({"--norms", "--server-timeout-ms", "300", "--steps", "60"});
  ASSERT_TRUE(trainer->WaitForOutput("norm 5 ", kLimit));
  server->Signal(SIGKILL);
  const auto ended = trainer->Wait(kLimit);
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->exit_code, 75) << trainer->Output();
  EXPECT_NE(trainer->Output().find("TP3009"), std::string::npos) << trainer->Output();
  server = Serve({"--no-respawn"});
  const Process heir = Train({"--persistent"});
  ASSERT_EQ(heir->Wait(kLimit)->exit_code, 0) << heir->Output();
  EXPECT_EQ(heir->Output().find("from 0"), std::string::npos) << "it began anew: " << heir->Output();
  EXPECT_EQ(HashIn(heir->Output()), UndisturbedHash());
  server->Signal(SIGINT);
  EXPECT_TRUE(WaitForFilesToGo());
}

TEST_F(Durability, WithoutRespawnTheMemoryIsHeldForTheLeaseThenGivenBack) {
  const Process server = Serve({"--no-respawn", "--lease", "1s"});
  const pid_t keeper = PidIn(server->Output(), "\"keeper_pid\":");
  server->Signal(SIGKILL);
  ASSERT_TRUE(server->Wait(kLimit).has_value());
  EXPECT_TRUE(std::ifstream("/proc/" + std::to_string(keeper) + "/cmdline").peek() != EOF) << "it holds the memory";
  ExpectGone(keeper);
}

// The release after this one has another layout: it goes on with our memory, and we refuse its.
TEST_F(Durability, TheNextReleaseTakesOverAndAnUnknownLayoutIsRefused) {
  const std::string expected = UndisturbedHash();
  Process server = Serve({"--no-respawn"});
  const Process trainer = Train({"--norms"});
  ASSERT_TRUE(trainer->WaitForOutput("norm 5 ", kLimit)) << trainer->Output();
  server->Signal(SIGTERM);
  ASSERT_EQ(server->Wait(kLimit)->exit_code, 0);
  std::vector<std::string> next =
      MemserverCommand(directory_.path(), {"--keeper", "process", "--lease", "20s", "--pool", "8MiB", "--no-respawn"});
  const std::vector<std::string> ours = next;
  next.front() = TIDEPOOL_MEMSERVER_NEXT;
  ChildProcess newer(next);
  ASSERT_TRUE(newer.WaitForOutput("\"ready\"", kLimit)) << newer.Output();
  ASSERT_TRUE(trainer->WaitForOutput("norm 30 ", kLimit)) << trainer->Output();
  newer.Signal(SIGTERM);
  ASSERT_EQ(newer.Wait(kLimit)->exit_code, 0);
  ChildProcess refused(ours);
  EXPECT_EQ(refused.Wait(kLimit)->exit_code, 8) << refused.Output();
  EXPECT_NE(refused.Output().find("layout 3"), std::string::npos) << refused.Output();
  EXPECT_NE(refused.Output().find("layout 2"), std::string::npos) << refused.Output();
  ChildProcess again(next);  // nothing was lost by the refusal
  ASSERT_TRUE(again.WaitForOutput("\"ready\"", kLimit)) << again.Output();
  ASSERT_EQ(trainer->Wait(kLimit)->exit_code, 0) << trainer->Output();
  EXPECT_EQ(HashIn(trainer->Output()), expected);
  again.Signal(SIGINT);
  EXPECT_EQ(again.Wait(kLimit)->exit_code, 0);
}

}  // namespace
}  // namespace tidepool::testing
