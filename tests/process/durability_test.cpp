// What docs/durability.md promises, with whole processes, one test a promise: who may die, what
// goes on, and what is said where it cannot.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/clock.h"
#include "shm/socket_path.h"
#include "tests/process/rig/daemon_fixture.h"
#include "tests/process/rig/durable_daemon.h"
#include "tests/process/rig/memserver_process.h"

namespace tidepool::testing {
namespace durability_test {

class Durability : public DurableDaemon {
 protected:
  // That the states of its job are lost.
  static void ExpectTold(ChildProcess* trainer) {
    const auto ended = trainer->Wait(kLimit);
    ASSERT_TRUE(ended.has_value()) << trainer->Output();
    EXPECT_EQ(ended->exit_code, 7) << trainer->Output();
    EXPECT_NE(trainer->Output().find("TP3014"), std::string::npos) << trainer->Output();
  }
};

pid_t PidIn(const std::string& text, const std::string& key) {
  const size_t at = text.rfind(key);
  return at == std::string::npos ? 0 : static_cast<pid_t>(std::stol(text.substr(at + key.size())));
}

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
  first->Signal(SIGSTOP);  // else it may have another keeper before it is killed
  kill(keeper, SIGKILL);
  first->Signal(SIGKILL);
  ASSERT_TRUE(first->Wait(kLimit).has_value());
  const Process next = Serve();
  ExpectTold(trainer.get());
  EXPECT_EQ(HoldingsOf(directory_.path()), kNothing) << "the next daemon starts clean";
  next->Signal(SIGINT);
  EXPECT_EQ(next->Wait(kLimit)->exit_code, 0);
  EXPECT_TRUE(WaitForFilesToGo());
}

// Whenever the second one comes: while work in hand is waited for, or too late to be heard.
TEST_F(Durability, ASecondSignalAtAHandOverLeavesTheJobsWhereTheFirstOneLeftThem) {
  const std::vector<std::string> options{"--no-respawn", "--pool", "128MiB"};
  Process server = Serve(options);
  const Process trainer =
      Train({"--norms", "--elements", "524288", "--pause-ms", "0", "--steps", "100000"});
  SteadyClock clock;
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(trainer->WaitForOutput("norm " + std::to_string(10 * i + 5) + " ", kLimit))
        << trainer->Output();
    server->Signal(SIGTERM);
    clock.SleepNs(10'000 * i);
    server->Signal(SIGTERM);
    const auto ended = server->Wait(kLimit);
    ASSERT_TRUE(ended.has_value());
    EXPECT_TRUE(ended->exit_code == 0 || ended->signal == SIGTERM) << server->Output();
    server = Serve(options);
    ASSERT_FALSE(trainer->Wait(0)) << trainer->Output();
  }
}

// The keeper dies while it hands the memory to the next server, and while it starts it: with nobody
// left to hold it, the memory is gone; the rank is told, and the next server starts clean at once.
TEST_F(Durability, AKeeperThatDiesAtTheHandOverLeavesACleanStart) {
  const std::string expected = UndisturbedHash();
#ifdef TIDEPOOL_SANITIZED
  constexpr int kDeaths = 4;
#else
  constexpr int kDeaths = 10;
#endif
  for (int i = 0; i < kDeaths; ++i) {
    const char* const point = i % 2 == 0 ? "keeper.given:1" : "keeper.respawning:1";
    SCOPED_TRACE(point);
    const bool respawns = std::string(point) == "keeper.respawning:1";
    const Process first =
        Serve(respawns ? std::vector<std::string>{} : std::vector<std::string>{"--no-respawn"},
              {std::string("TIDEPOOL_KILL_AT=") + point});
    const Process trainer = Train({"--persistent", "--norms", "--steps", "100000"});
    ASSERT_TRUE(trainer->WaitForOutput("norm 5 ", kLimit)) << trainer->Output();
    const pid_t keeper = PidIn(first->Output(), "\"keeper_pid\":");
    first->Signal(SIGKILL);
    ASSERT_TRUE(first->Wait(kLimit).has_value());
    const Process next = Serve();
    ExpectGone(keeper);
    ExpectTold(trainer.get());
    EXPECT_EQ(HoldingsOf(directory_.path()), kNothing);
    const Process heir = Train({"--persistent", "--pause-ms", "0"});
    ASSERT_EQ(heir->Wait(kLimit)->exit_code, 0) << heir->Output();
    EXPECT_EQ(HashIn(heir->Output()), expected);
    next->Signal(SIGINT);
    EXPECT_EQ(next->Wait(kLimit)->exit_code, 0) << next->Output();
    EXPECT_TRUE(WaitForFilesToGo());
  }
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
  EXPECT_EQ(heir->Output().find("from 0"), std::string::npos)
      << "it began anew: " << heir->Output();
  EXPECT_EQ(HashIn(heir->Output()), UndisturbedHash());
  server->Signal(SIGINT);
  EXPECT_TRUE(WaitForFilesToGo());
}

TEST_F(Durability, WithoutRespawnTheMemoryIsHeldForTheLeaseThenGivenBack) {
  const Process server = Serve({"--no-respawn", "--lease", "1s"});
  const pid_t keeper = PidIn(server->Output(), "\"keeper_pid\":");
  server->Signal(SIGKILL);
  ASSERT_TRUE(server->Wait(kLimit).has_value());
  EXPECT_TRUE(std::ifstream("/proc/" + std::to_string(keeper) + "/cmdline").peek() != EOF)
      << "it holds the memory";
  ExpectGone(keeper);
}

// A server dies with a tile open, and five others after it at each stage of recovery, one of them
// while it puts the tile back.
TEST_F(Durability, KilledFiveTimesInsideRecoveryItStillEndsRight) {
  const std::string expected = UndisturbedHash();
  const std::vector<std::string> command =
      MemserverCommand(directory_.path(),
                       {"--keeper", "process", "--lease", "20s", "--pool", "8MiB", "--no-respawn"});
  ChildProcess first(command, {"TIDEPOOL_KILL_AT=optim.tile_written:100"});
  const Process trainer = Train();
  const auto ended = first.Wait(kLimit);
  ASSERT_TRUE(ended && ended->signal == SIGKILL) << first.Output();
  for (const char* point : {"recover.job_read", "optim.tile_restored", "recover.tiles_restored",
                            "recover.step_counted", "recover.job_read"}) {
    ChildProcess server(command, {std::string("TIDEPOOL_KILL_AT=") + point});
    const auto end = server.Wait(kLimit);
    ASSERT_TRUE(end && end->signal == SIGKILL) << point << ": " << server.Output();
  }
  const Process last = Serve({"--no-respawn"});
  const auto done = trainer->Wait(kLimit);
  ASSERT_TRUE(done && done->exit_code == 0) << trainer->Output();
  EXPECT_EQ(HashIn(trainer->Output()), expected);
  last->Signal(SIGINT);
  EXPECT_EQ(last->Wait(kLimit)->exit_code, 0);
  EXPECT_TRUE(WaitForFilesToGo());
}

TEST_F(Durability, AKeeperThatCannotBeStartedIsTriedAgain) {
  const Process server = Serve({"--no-respawn"});
  const std::string path = shm::KeeperSocketPath(directory_.path());
  ASSERT_TRUE(std::filesystem::remove(path));
  ASSERT_TRUE(std::filesystem::create_directory(path)) << "what no socket can take the place of";
  kill(FindKeeper(directory_.path()), SIGKILL);
  ASSERT_TRUE(server->WaitForOutput("no new one could be started", kLimit)) << server->Output();
  ASSERT_TRUE(std::filesystem::remove(path));
  EXPECT_TRUE(server->WaitForOutput("a new one holds", kLimit)) << server->Output();
  server->Signal(SIGKILL);
  ASSERT_TRUE(server->Wait(kLimit).has_value());
  const Process next = Serve({"--no-respawn"});
  EXPECT_TRUE(next->WaitForOutput("\"adopted\":true", kLimit)) << next->Output();
  next->Signal(SIGINT);
  EXPECT_TRUE(WaitForFilesToGo());
}

// What memserver is told about its log holds for its keeper too, which writes to the same place.
TEST_F(Durability, TheKeeperLogsAsItsServerIsTold) {
  const auto log_of_a_crash = [this](const char* level) {
    ChildProcess server(
        MemserverCommand(directory_.path(), {"--keeper", "process", "--no-respawn", "--lease", "1s",
                                             "--log-level", level, "--log-format", "json"}));
    EXPECT_EQ(WaitForHoldings(directory_.path(), kNothing, kLimit), kNothing) << server.Output();
    const pid_t keeper = FindKeeper(directory_.path());
    EXPECT_GT(keeper, 0);
    server.Signal(SIGKILL);
    EXPECT_TRUE(server.Wait(kLimit).has_value());
    ExpectGone(keeper);
    return server.Output();
  };
  const std::string all = log_of_a_crash("info"), few = log_of_a_crash("error");
  EXPECT_NE(all.find("\"program\":\"keeper\""), std::string::npos) << all;
  EXPECT_EQ(few.find("\"program\":\"keeper\""), std::string::npos) << few;
}

}  // namespace durability_test
}  // namespace tidepool::testing
