// The real programs: a trainer and its memserver are killed at any moment, and the weights that are
// saved in the end have the same bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "base/clock.h"
#include "base/error_catalog.h"
#include "shm/socket_path.h"
#include "tests/fakes/real_clock.h"
#include "tests/process/rig/daemon_fixture.h"
#include "tests/process/rig/memserver_process.h"
#include "tests/trainer/program/trainer_runs.h"
#include "trainer/comm/meeting/rendezvous_store.h"
#include "trainer/launch/rank_roll.h"

namespace tidepool::testing {
namespace trainer_kill_test {

using ::testing::HasSubstr;

std::string ReadText(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// A memserver with a keeper, which starts it again when it is killed.
class KeptServer {
 public:
  KeptServer() : first_(Settings()) {}
  // The orderly end of server and keeper; whichever server lives by now.
  ~KeptServer() {
    SteadyClock clock;
    const int64_t end_ns = clock.NowNs() + 20 * kNsPerSecond;
    while (std::filesystem::exists(shm::KeeperSocketPath(socket_dir())) && clock.NowNs() < end_ns) {
      if (const pid_t pid = Pid(); pid > 0) kill(pid, SIGINT);
      clock.SleepNs(50 * kNsPerMs);
    }
    EXPECT_FALSE(std::filesystem::exists(shm::KeeperSocketPath(socket_dir())))
        << "the keeper has not ended";
  }
  // SIGKILL, whoever serves now; waits until the next one has taken over.
  void Kill() const {
    const pid_t pid = Pid();
    ASSERT_GT(pid, 0);
    kill(pid, SIGKILL);
    SteadyClock clock;
    const int64_t end_ns = clock.NowNs() + 20 * kNsPerSecond;
    while ((Pid() <= 0 || Pid() == pid) && clock.NowNs() < end_ns) clock.SleepNs(5 * kNsPerMs);
    EXPECT_NE(Pid(), pid) << "no memserver came after the one that was killed";
  }
  // SIGKILL for the keeper alone; waits until the server has started another.
  void KillKeeper() const {
    const pid_t keeper = FindKeeper(socket_dir());
    ASSERT_GT(keeper, 0);
    kill(keeper, SIGKILL);
    SteadyClock clock;
    const int64_t end_ns = clock.NowNs() + 20 * kNsPerSecond;
    const auto waits = [&] {
      const pid_t now = FindKeeper(socket_dir());
      return now <= 0 || now == keeper;
    };
    while (waits() && clock.NowNs() < end_ns) clock.SleepNs(5 * kNsPerMs);
    EXPECT_FALSE(waits()) << "no keeper came after the one that was killed";
  }
  // SIGKILL for the first server and its keeper: what they held is gone. Returns when another
  // server is ready.
  void KillWithKeeper() {
    const pid_t keeper = FindKeeper(socket_dir());
    ASSERT_GT(keeper, 0);
    first_.process().Signal(SIGSTOP);  // while it ran it would start another keeper
    kill(keeper, SIGKILL);
    first_.process().Signal(SIGKILL);
    ASSERT_TRUE(first_.process().Wait(20 * kNsPerSecond));
    next_ = std::make_unique<ChildProcess>(MemserverCommand(socket_dir(), Settings()));
    EXPECT_TRUE(next_->WaitForOutput("\"message\":\"ready\"", 20 * kNsPerSecond))
        << next_->Output();
  }
  const std::string& socket_dir() const { return first_.socket_dir(); }

 private:
  static std::vector<std::string> Settings() { return {"--keeper", "process", "--lease", "60s"}; }
  pid_t Pid() const { return FindServer(socket_dir()); }

  MemserverProcess first_;
  std::unique_ptr<ChildProcess> next_;  // after both were killed
};

class TrainerKillTest : public TrainerRuns {
 protected:
  std::vector<std::string> Run(const std::string& name, Flags more = {}) const {
    more.insert({{"--job", "j"}, {"--resume", "auto"}, {"--socket-dir", server_.socket_dir()}});
    return Words(name, more);
  }
  static bool Ignores(int signal, pid_t pid) {
    const std::string status = ReadText("/proc/" + std::to_string(pid) + "/status");
    const uint64_t mask =
        std::stoull("0" + status.substr(status.find("SigIgn:") + 8, 16), nullptr, 16);
    return (mask >> (signal - 1) & 1) != 0;
  }
  std::vector<std::string> Launched(const std::string& name, const Flags& more = {}) const {
    std::vector<std::string> words{"launch", "-n", "2", "--"};
    const std::vector<std::string> run = Run(name, more);
    words.insert(words.end(), run.begin(), run.end());
    return words;
  }

  KeptServer server_;
};

// Every point of the rooms below trainer/ that a rank with a slot passes, in the order in which one
// run does; behind the last nothing is left to do.
struct Point {
  const char* name;
  bool in_each_step;
};
constexpr Point kPoints[] = {{"trainer.forward_done", true},
                             {"trainer.backward_done", true},
                             {"trainer.step_sealed", true},
                             {"trainer.run_done", false},
                             {"trainer.detached", false}};

TEST_F(TrainerKillTest, ATrainerThatIsStartedAgainGoesOn) {
  const auto whole = Start(Run("whole"));
  ExpectDone(whole.get());
  for (int round = 0; round < 5; ++round) {
    const std::string name = "killed-" + std::to_string(round);
    for (const Point& point : kPoints) {
      const std::string passing = ":" + std::to_string(point.in_each_step ? 2 + round : 1);
      const auto killed =
          Start(Run(name), {"TIDEPOOL_KILL_AT=" + std::string(point.name) + passing});
      const auto end = killed->Wait(kRunNs);
      ASSERT_TRUE(end) << killed->Output();
      EXPECT_EQ(end->signal, SIGKILL) << point.name << "\n" << killed->Output();
      const bool goes_on =
          killed->Output().find("goes on behind its sealed step") != std::string::npos;
      EXPECT_EQ(goes_on, &point != kPoints) << point.name << "\n" << killed->Output();
    }
    ExpectSame(name, "whole");
    EXPECT_EQ(WaitForHoldings(server_.socket_dir(), kNothing, kRunNs), kNothing)
        << "it had said goodbye";
  }
}

// Points between stages, and in the requests by which sums of gradients leave. What comes out are
// the bits of a run without stages.
constexpr const char* kStagePoints[] = {"trainer.stage_forward_done:2",
                                        "trainer.stage_backward_done:3", "client.gradient_sent:4"};

TEST_F(TrainerKillTest, ATrainerThatIsKilledBetweenStagesGoesOn) {
  const Flags batches{{"--dtype", "bf16"}, {"--accumulate", "3"}};
  const auto whole = Start(Run("whole", batches));
  ExpectDone(whole.get());
  Flags staged = batches;
  staged["--pipeline"] = "2";
  for (int round = 0; round < 5; ++round) {
    for (const char* point : kStagePoints) {
      const auto killed = Start(Run("killed", staged), {std::string("TIDEPOOL_KILL_AT=") + point});
      const auto end = killed->Wait(kRunNs);
      ASSERT_TRUE(end) << killed->Output();
      EXPECT_EQ(end->signal, SIGKILL) << point << "\n" << killed->Output();
    }
  }
  const auto last = Start(Run("killed", staged));
  ASSERT_TRUE(WaitForLines("killed", 20, last.get())) << last->Output();
  server_.Kill();
  ExpectDone(last.get());
  EXPECT_THAT(last->Output(), HasSubstr("goes on behind its sealed step"));
  EXPECT_THAT(last->Output(), HasSubstr("memserver is back"));
  ExpectSame("killed", "whole");
}

TEST_F(TrainerKillTest, ATrainerThatIsKilledInARequestGoesOn) {
  const auto whole = Start(Run("whole"));
  ExpectDone(whole.get());
  for (const char* point : {"client.put_sent:3", "client.end_step_sent:5"}) {
    const auto killed = Start(Run("killed"), {std::string("TIDEPOOL_KILL_AT=") + point});
    const auto end = killed->Wait(kRunNs);
    ASSERT_TRUE(end) << killed->Output();
    EXPECT_EQ(end->signal, SIGKILL) << point << "\n" << killed->Output();
  }
  const auto last = Start(Run("killed"));
  ExpectDone(last.get());
  EXPECT_THAT(last->Output(), HasSubstr("goes on behind its sealed step"));
  ExpectSame("killed", "whole");
}

TEST_F(TrainerKillTest, ATrainerWaitsForItsServer) {
  const auto whole = Start(Run("whole"));
  ExpectDone(whole.get());
  const auto trainer = Start(Run("server-killed"));
  ASSERT_TRUE(WaitForLines("server-killed", 1, trainer.get())) << trainer->Output();
  EXPECT_TRUE(Ignores(SIGPIPE, trainer->pid()))
      << "libraries that write to a peer that has died would end this rank too";
  for (const uint64_t lines : {4, 12, 20}) {
    if (WaitForLines("server-killed", lines, trainer.get())) server_.Kill();
  }
  ExpectDone(trainer.get());
  EXPECT_THAT(trainer->Output(), HasSubstr("memserver has ended; waiting for it"));
  EXPECT_THAT(trainer->Output(), HasSubstr("memserver is back"));
  ExpectSame("server-killed", "whole");
}

// `trainer launch` starts the killed rank again, the other one waits for it; then rank 0, where the
// ranks meet.
TEST_F(TrainerKillTest, ALaunchedRankThatIsKilledComesBack) {
  const auto whole = Start(Launched("whole"));
  ExpectDone(whole.get());
  const auto trainer = Start(Launched("ranks-killed"));
  uint64_t lines = 4;
  for (const uint64_t rank : {1, 0}) {
    ASSERT_TRUE(WaitForLines("ranks-killed", lines, trainer.get())) << trainer->Output();
    const pid_t pid = PidOfRank(server_.socket_dir(), "j", rank);
    ASSERT_GT(pid, 0) << trainer->Output();
    kill(pid, SIGKILL);
    lines += 8;
  }
  ExpectDone(trainer.get());
  EXPECT_THAT(trainer->Output(), HasSubstr("a rank died; starting it again"));
  ExpectSame("ranks-killed", "whole");
}

// Each of two ranks has a stage, and its end of the model. What comes out are the bits of one rank
// that goes through no stages.
TEST_F(TrainerKillTest, APipelineOfTwoRanksGoesOnBehindEveryDeath) {
  const Flags batches{{"--dtype", "bf16"}, {"--accumulate", "3"}};
  const auto whole = Start(Run("whole", batches));
  ExpectDone(whole.get());
  Flags staged = batches;
  staged["--pipeline"] = "2";
  const auto trainer = Start(Launched("pipeline", staged));
  uint64_t lines = 3;
  const auto await = [&] {
    const bool came = WaitForLines("pipeline", lines, trainer.get());
    lines += 5;
    return came;
  };
  for (const uint64_t rank : {1, 0}) {
    ASSERT_TRUE(await()) << trainer->Output();
    const pid_t pid = PidOfRank(server_.socket_dir(), "j", rank);
    ASSERT_GT(pid, 0) << trainer->Output();
    kill(pid, SIGKILL);
  }
  ASSERT_TRUE(await()) << trainer->Output();
  server_.Kill();
  ASSERT_TRUE(await()) << trainer->Output();
  server_.KillKeeper();
  ExpectDone(trainer.get());
  EXPECT_THAT(trainer->Output(), HasSubstr("a rank died; starting it again"));
  EXPECT_THAT(trainer->Output(), HasSubstr("memserver is back"));
  ExpectSame("pipeline", "whole");
  EXPECT_EQ(WaitForHoldings(server_.socket_dir(), kNothing, kRunNs), kNothing);
}

// Two ranks, each with all stages of its own column: their sums are added up between them. What
// comes out are the bits of an undisturbed run with as many columns.
TEST_F(TrainerKillTest, AColumnThatIsKilledComesBack) {
  const Flags columns{
      {"--dtype", "bf16"}, {"--accumulate", "3"}, {"--pipeline", "2"}, {"--columns", "2"}};
  const auto whole = Start(Launched("whole", columns));
  ExpectDone(whole.get());
  const auto trainer = Start(Launched("columns", columns));
  uint64_t lines = 2;
  for (const uint64_t rank : {1, 0}) {
    ASSERT_TRUE(WaitForLines("columns", lines, trainer.get())) << trainer->Output();
    const pid_t pid = PidOfRank(server_.socket_dir(), "j", rank);
    ASSERT_GT(pid, 0) << trainer->Output();
    kill(pid, SIGKILL);
    lines += 4;
  }
  ASSERT_TRUE(WaitForLines("columns", lines, trainer.get())) << trainer->Output();
  server_.Kill();
  ExpectDone(trainer.get());
  EXPECT_THAT(trainer->Output(), HasSubstr("a rank died; starting it again"));
  EXPECT_THAT(trainer->Output(), HasSubstr("memserver is back"));
  ExpectSame("columns", "whole");
  EXPECT_EQ(WaitForHoldings(server_.socket_dir(), kNothing, kRunNs), kNothing);
}

// A launcher's roll, found among its descriptors.
class RollOf {
 public:
  explicit RollOf(pid_t launcher) : descriptors_("/proc/" + std::to_string(launcher) + "/fd") {}

  // The process of this life of a rank, once it stands still; -1 when that never comes.
  pid_t AwaitStopped(uint32_t rank, uint32_t life) const {
    SteadyClock clock;
    for (const int64_t end_ns = clock.NowNs() + kPromptNs; clock.NowNs() < end_ns;
         clock.SleepNs(kNsPerMs)) {
      const auto roll = trainer::RankRollView::Open(Path(), 2);
      if (!roll.ok()) continue;
      const trainer::RollEntry entry = roll.value().Read(rank);
      const bool has_come = entry.state == trainer::RollEntry::State::kComing && entry.life == life;
      if (has_come && ReadText("/proc/" + std::to_string(entry.pid) + "/stat").find(") T ") !=
                          std::string::npos)
        return entry.pid;
    }
    return -1;
  }

 private:
  std::string Path() const {
    std::error_code gone;
    for (const auto& entry : std::filesystem::directory_iterator(descriptors_, gone)) {
      if (std::filesystem::read_symlink(entry.path(), gone).string().find("memfd:tidepool-roll") !=
          std::string::npos)
        return entry.path().string();
    }
    return "";
  }
  const std::string descriptors_;
};

// Each life of a rank stands still before it takes its session slot, until the other one has waited
// for it beyond the limit.
TEST_F(TrainerKillTest, ALaunchedRankThatComesLateIsWaitedFor) {
  const auto whole = Start(Launched("whole"));
  ExpectDone(whole.get());
  const auto trainer =
      Start(Launched("late", {{"--rejoin-timeout", "3s"}}), {"TIDEPOOL_STOP_AT=trainer.coming"});
  const RollOf roll(trainer->pid());
  for (const uint32_t rank : {0, 1}) {
    const pid_t pid = roll.AwaitStopped(rank, 1);
    ASSERT_GT(pid, 0) << trainer->Output();
    kill(pid, SIGCONT);
  }
  uint64_t lines = 4;
  for (const uint32_t rank : {1, 0}) {
    ASSERT_TRUE(WaitForLines("late", lines, trainer.get())) << trainer->Output();
    const pid_t before = PidOfRank(server_.socket_dir(), "j", rank);
    ASSERT_GT(before, 0) << trainer->Output();
    kill(before, SIGKILL);
    const pid_t again = roll.AwaitStopped(rank, 2);
    ASSERT_GT(again, 0) << trainer->Output();
    const std::string waiting =
        "waiting for rank " + std::to_string(rank) + " (pid " + std::to_string(again) + ")";
    ASSERT_TRUE(trainer->WaitForOutput(waiting, kRunNs)) << trainer->Output();
    kill(again, SIGCONT);
    lines += 8;
  }
  ExpectDone(trainer.get());
  ExpectSame("late", "whole");
}

// What torchrun does, whose agent holds the store: all ranks are started again when one has died,
// here behind its goodbye.
TEST_F(TrainerKillTest, ARunWhoseRankIsKilledBehindItsGoodbyeIsNotBegunAnew) {
  for (const uint32_t world : {2u, 1u}) {
    SCOPED_TRACE(world);
    const auto agent =
        trainer::RendezvousStore::Open({.rank = 0, .world = 2, .clock = RealClock()});
    ASSERT_TRUE(agent.ok()) << agent.status().Format();
    const std::string name = "torchrun-" + std::to_string(world);
    const auto start = [&](uint32_t rank, int restarts, bool dies) {
      const std::string number = std::to_string(rank), count = std::to_string(world);
      std::vector<std::string> environment{
          "RANK=" + number,
          "LOCAL_RANK=" + number,
          "WORLD_SIZE=" + count,
          "LOCAL_WORLD_SIZE=" + count,
          "MASTER_ADDR=127.0.0.1",
          "MASTER_PORT=" + std::to_string(agent.value()->port()),
          "TORCHELASTIC_RUN_ID=none",
          "TORCHELASTIC_USE_AGENT_STORE=True",
          "TORCHELASTIC_RESTART_COUNT=" + std::to_string(restarts)};
      if (dies) environment.emplace_back("TIDEPOOL_KILL_AT=trainer.detached");
      return Start(Run(name), environment);
    };
    std::vector<std::unique_ptr<ChildProcess>> first, again;
    for (uint32_t rank = 0; rank < world; ++rank)
      first.push_back(start(rank, 0, /*dies=*/rank + 1 == world));
    const auto end = first.back()->Wait(kRunNs);
    ASSERT_TRUE(end) << first.back()->Output();
    EXPECT_EQ(end->signal, SIGKILL) << first.back()->Output();
    if (world == 2) ExpectDone(first.front().get());
    const std::string weights = Weights(name);
    const std::vector<std::string> losses = Losses(name);
    EXPECT_EQ(losses.size(), kSteps + 1);
    for (uint32_t rank = 0; rank < world; ++rank) again.push_back(start(rank, 1, /*dies=*/false));
    for (const auto& rank : again) ExpectDone(rank.get());
    EXPECT_THAT(again.front()->Output(), HasSubstr("every rank had come to its end"));
    EXPECT_EQ(Losses(name), losses);
    EXPECT_TRUE(Weights(name) == weights);
    EXPECT_EQ(NumberIn(AskAdmin(server_.socket_dir(), "/v1/status"), "jobs"), 0);
  }
}

// Then nobody holds the states; the trainer is told, by the server that comes next, and a new run
// has nothing to do with the old one.
TEST_F(TrainerKillTest, AServerThatIsKilledWithItsKeeperLosesTheJob) {
  const auto whole = Start(Run("whole"));
  ExpectDone(whole.get());
  const auto trainer = Start(Run("lost", {{"--steps", "100000"}}));
  ASSERT_TRUE(WaitForLines("lost", 5, trainer.get())) << trainer->Output();
  server_.KillWithKeeper();
  const auto end = trainer->Wait(kRunNs);
  ASSERT_TRUE(end) << trainer->Output();
  EXPECT_EQ(end->exit_code, kExitCorrupt) << trainer->Output();
  EXPECT_THAT(trainer->Output(), HasSubstr("error[TP3014]"));
  EXPECT_THAT(trainer->Output(), HasSubstr("memserver and its keeper ended together"));
  EXPECT_EQ(HoldingsOf(server_.socket_dir()), kNothing);
  const auto again = Start(Run("again"));
  ExpectDone(again.get());
  EXPECT_THAT(again->Output(), HasSubstr("starting at step 1"));
  ExpectSame("again", "whole");
}

TEST_F(TrainerKillTest, AServerThatDoesNotComeBackEndsTheTrainerWithTheJobKept) {
  auto alone = std::make_unique<MemserverProcess>(
      std::vector<std::string>{"--keeper", "none", "--lease", "60s"});
  const auto trainer =
      Start(Run("alone", {{"--server-timeout", "300ms"}, {"--socket-dir", alone->socket_dir()}}));
  ASSERT_TRUE(WaitForLines("alone", 3, trainer.get())) << trainer->Output();
  alone->process().Signal(SIGKILL);
  const auto end = trainer->Wait(kRunNs);
  ASSERT_TRUE(end) << trainer->Output();
  EXPECT_EQ(end->exit_code, 75) << trainer->Output();
  EXPECT_THAT(trainer->Output(), HasSubstr("the job is kept"));
  EXPECT_THAT(trainer->Output(), HasSubstr("--job j --resume auto continues"));
}

}  // namespace trainer_kill_test
}  // namespace tidepool::testing
