#include "trainer/launch/spawn_ranks.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "base/unique_fd.h"
#include "trainer/launch/line_prefixer.h"

namespace tidepool::trainer {
namespace spawn_ranks_test {

using ::testing::HasSubstr;
using ::testing::Not;

std::string ReadText(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Runs the launcher in a process of its own, its output in files, as `trainer launch` would run it.
class SpawnRanksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = ::testing::TempDir() + "/launch-XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    directory_ = path;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string File(const std::string& name) const { return directory_ + "/" + name; }

  // Starts `sh -c script` as every rank; $DIR is the test's directory.
  void Launch(uint32_t ranks, const std::string& script, int64_t grace_ns = 20 * kNsPerSecond,
              uint32_t restarts = 0) {
    setenv("DIR", directory_.c_str(), 1);
    launcher_ = fork();
    if (launcher_ != 0) return;
    const UniqueFd out(open(File("out").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600));
    const UniqueFd err(open(File("err").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600));
    dup2(out.get(), STDOUT_FILENO);
    dup2(err.get(), STDERR_FILENO);
    const SteadyClock clock;
    const auto code = SpawnRanks({ranks, "sh", {"-c", script}, grace_ns, restarts}, &clock);
    _exit(code.ok() ? code.value() : 99);
  }
  // The end of a script: rank 1 ends once rank 0 has come this far too, rank 0 never does.
  static std::string RankOneEndsWith(int code) {
    return "if test $RANK = 1; then while ! test -e $DIR/up; do sleep 0.01; done; exit " +
           std::to_string(code) + "; fi; touch $DIR/up; while :; do sleep 0.02; done";
  }
  int WaitForLauncher() {
    int status = 0;
    while (waitpid(launcher_, &status, 0) < 0) {
    }
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  int Run(uint32_t ranks, const std::string& script) {
    Launch(ranks, script);
    return WaitForLauncher();
  }
  int RunWithRestarts(uint32_t ranks, const std::string& script, uint32_t restarts) {
    Launch(ranks, script, 20 * kNsPerSecond, restarts);
    return WaitForLauncher();
  }
  void WaitForFile(const std::string& name) {
    SteadyClock clock;
    for (int i = 0; i < 5000 && !std::filesystem::exists(File(name)); ++i)
      clock.SleepNs(2 * kNsPerMs);
    ASSERT_TRUE(std::filesystem::exists(File(name))) << name << "\n" << ReadText(File("err"));
  }
  // True once no process `pid` is left (a zombie that init has yet to collect does not count).
  static bool Gone(pid_t pid) {
    SteadyClock clock;
    for (int i = 0; i < 5000; ++i) {
      const std::string stat = ReadText("/proc/" + std::to_string(pid) + "/stat");
      if (stat.empty() || stat.find(") Z ") != std::string::npos) return true;
      clock.SleepNs(2 * kNsPerMs);
    }
    return false;
  }

  std::string directory_;
  pid_t launcher_ = -1;
};

// Its mark says that it had nothing left to do: it counts as ended well. Rank 0, without a mark, is
// started again.
TEST_F(SpawnRanksTest, ARankThatIsKilledWhenItIsDoneIsNotStartedAgain) {
  const std::string script =
      "echo $RANK >> $DIR/lives; if test $RANK = 1; then printf '\\001' | dd "
      "of=$TIDEPOOL_LAUNCH_DONE bs=1 seek=1 conv=notrunc "
      "2>/dev/null; "
      "kill -9 $$; fi; test $(grep -c ^0 $DIR/lives) = 1 && kill -9 $$; exit 0";
  EXPECT_EQ(RunWithRestarts(2, script, 5), 0) << ReadText(File("err"));
  const std::string lives = ReadText(File("lives"));
  EXPECT_EQ(std::count(lives.begin(), lives.end(), '1'), 1);
  EXPECT_EQ(std::count(lives.begin(), lives.end(), '0'), 2);
}

// Ctrl-C is told as such, also by a rank that ended in order behind it.
TEST_F(SpawnRanksTest, ARankThatWasAskedToEndIsNoRankThatWasKilledWhenDone) {
  EXPECT_EQ(
      Run(1,
          "printf '\\001' | dd of=$TIDEPOOL_LAUNCH_DONE bs=1 conv=notrunc 2>/dev/null; exit 130"),
      130);
}

// Rank 1 dies twice; rank 0 goes on until rank 1's third life has come, as a rank does that waits
// for the other.
TEST_F(SpawnRanksTest, ARankThatDiesIsStartedAgainBesideTheOthers) {
  const std::string script =
      "echo $RANK $TIDEPOOL_LAUNCH_ID >> $DIR/lives; if test $RANK = 0; then while ! test -e "
      "$DIR/done; do sleep 0.01; done; exit 0; fi; "
      "echo life; case $(grep -c ^1 $DIR/lives) in 1) kill -9 $$;; 2) exit 1;; esac; touch "
      "$DIR/done";
  EXPECT_EQ(RunWithRestarts(2, script, 2), 0) << ReadText(File("err"));
  std::istringstream lives(ReadText(File("lives")));
  std::map<std::string, int> ranks;
  std::set<std::string> runs;
  for (std::string rank, run; lives >> rank >> run;) ++ranks[rank], runs.insert(run);
  EXPECT_EQ(ranks["0"], 1);
  EXPECT_EQ(ranks["1"], 3);
  EXPECT_EQ(runs.size(), 1U) << "a rank that comes back looks for the others under the same name";
  EXPECT_EQ(ReadText(File("out")), "[rank 1] life\n[rank 1] life\n[rank 1] life\n");
  EXPECT_THAT(ReadText(File("err")), HasSubstr("a rank died; starting it again"));
}

TEST_F(SpawnRanksTest, WhenTheRestartsAreUsedUpTheRunEnds) {
  EXPECT_EQ(RunWithRestarts(2, "echo $RANK >> $DIR/lives; " + RankOneEndsWith(1), 2), 1);
  EXPECT_THAT(ReadText(File("err")), HasSubstr("a rank ended badly"));
  const std::string lives = ReadText(File("lives"));
  EXPECT_EQ(std::count(lives.begin(), lives.end(), '1'), 3);
}

// It said why it cannot go on; another start would say the same.
TEST_F(SpawnRanksTest, ARankThatEndsWithAReasonIsNotStartedAgain) {
  EXPECT_EQ(RunWithRestarts(2, "echo $RANK >> $DIR/lives; " + RankOneEndsWith(75), 2), 75);
  const std::string lives = ReadText(File("lives"));
  EXPECT_EQ(std::count(lives.begin(), lives.end(), '1'), 1);
}

// What ranks read there with the tools of a shell: the word of a rank, its state, process and life
// (rank_roll.cpp).
constexpr const char* kReadRoll =
    "word() { od -An -v -tu8 -j $((16 + 8 * $1)) -N 8 $TIDEPOOL_LAUNCH_ROLL; }; state() { echo "
    "$(($(word $1) & 3)); }; "
    "pid() { echo $(($(word $1) >> 10 & 4194303)); }; life() { echo $(($(word $1) >> 32)); }; "
    "await() { for turn in $(seq 2000); do if $1; then return; fi; sleep 0.01; done; exit 9; }; ";

TEST_F(SpawnRanksTest, TheRollSaysThatARankIsOnItsWay) {
  const std::string script =
      std::string(kReadRoll) +
      "if test $RANK = 1; then echo $$ > $DIR/pid; await 'test -e '$DIR/seen; exit; fi; "
      "named() { test -s $DIR/pid && test $(state 1) = 1 && test $(pid 1) = $(cat $DIR/pid); }; "
      "await named; touch $DIR/seen; test $(life 1) = 1";
  EXPECT_EQ(Run(2, script), 0) << ReadText(File("err"));
}

TEST_F(SpawnRanksTest, TheRollSaysThatARankHasEndedForGood) {
  for (const int code : {0, 75}) {
    const std::string script =
        std::string(kReadRoll) + "trap '' TERM; test $RANK = 1 && exit " + std::to_string(code) +
        "; ended() { test $(state 1) = 2; }; await ended; test $(($(word 1) >> 2 & 255)) = " +
        std::to_string(code);
    EXPECT_EQ(Run(2, script), code) << ReadText(File("err"));
    EXPECT_EQ(ReadText(File("err")).find("killed"), std::string::npos) << "rank 0 has seen it";
  }
}

// Those who look at any moment never see that it has ended.
TEST_F(SpawnRanksTest, TheRollSaysThatARankComesAgain) {
  const std::string script = std::string(kReadRoll) +
                             "if test $RANK = 1; then echo life >> $DIR/lives; test $(wc -l < "
                             "$DIR/lives) = 4 || kill -9 $$; "
                             "await 'test -e '$DIR/seen; exit; fi; "
                             "again() { test $(state 1) != 2 || exit 8; test $(life 1) = 4; }; "
                             "await again; touch $DIR/seen";
  EXPECT_EQ(RunWithRestarts(2, script, 3), 0) << ReadText(File("err"));
}

TEST_F(SpawnRanksTest, EveryRankLearnsItsPlace) {
  const char* script =
      "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $TIDEPOOL_LAUNCH_ID "
      "$MASTER_ADDR$MASTER_PORT >$DIR/rank$RANK";
  EXPECT_EQ(Run(3, script), 0);
  std::string shared;
  for (int rank = 0; rank < 3; ++rank) {
    std::istringstream words(ReadText(File("rank" + std::to_string(rank))));
    std::string own_rank, local_rank, world, local_world, id, address;
    words >> own_rank >> local_rank >> world >> local_world >> id >> address;
    EXPECT_EQ(own_rank, std::to_string(rank));
    EXPECT_EQ(local_rank, own_rank);
    EXPECT_EQ(world, "3");
    EXPECT_EQ(local_world, "3");
    EXPECT_EQ(address, "") << "no port is opened";
    EXPECT_THAT(id, ::testing::StartsWith("launch-"));
    if (rank == 0) shared = id;
    EXPECT_EQ(id, shared);
  }
}

TEST_F(SpawnRanksTest, TorchrunsVariablesDoNotReachTheRanks) {
  setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
  EXPECT_EQ(Run(1, "test -z \"$TORCHELASTIC_USE_AGENT_STORE\""), 0);
  unsetenv("TORCHELASTIC_USE_AGENT_STORE");
}

TEST_F(SpawnRanksTest, OutputOfRankZeroIsUnchangedAndOthersAreMarked) {
  EXPECT_EQ(Run(2, "printf 'one\\ntwo'; printf 'oops\\n' >&2"), 0);
  EXPECT_THAT(ReadText(File("out")), HasSubstr("one\ntwo"));
  EXPECT_THAT(ReadText(File("out")), HasSubstr("[rank 1] one\n[rank 1] two\n"));
  EXPECT_THAT(ReadText(File("out")), Not(HasSubstr("[rank 0]")));
  EXPECT_THAT(ReadText(File("err")), HasSubstr("[rank 1] oops\n"));
}

TEST_F(SpawnRanksTest, MuchOutputArrivesWhole) {
  EXPECT_EQ(Run(2, "test $RANK = 0 || seq 100000"), 0);
  std::istringstream lines(ReadText(File("out")));
  std::string line;
  int count = 0;
  while (std::getline(lines, line)) EXPECT_EQ(line, "[rank 1] " + std::to_string(++count));
  EXPECT_EQ(count, 100000);
}

TEST_F(SpawnRanksTest, OneBadRankEndsTheOthersAndItsCodeIsTheRunsCode) {
  EXPECT_EQ(Run(2, "trap 'touch $DIR/told; exit 5' TERM; " + RankOneEndsWith(7)), 7);
  EXPECT_TRUE(std::filesystem::exists(File("told")));
  EXPECT_THAT(ReadText(File("err")), HasSubstr("ended badly"));
}

TEST_F(SpawnRanksTest, AKilledRankIsCode128PlusSignal) {
  EXPECT_EQ(Run(2, "test $RANK = 0 || kill -9 $$"), 137);
}

TEST_F(SpawnRanksTest, ARankThatDoesNotListenIsKilledAfterTheGrace) {
  Launch(2, "trap '' TERM; echo $$ >$DIR/pid$RANK; " + RankOneEndsWith(3), 100 * kNsPerMs);
  EXPECT_EQ(WaitForLauncher(), 3);
  EXPECT_TRUE(Gone(std::stoi(ReadText(File("pid0")))));
}

TEST_F(SpawnRanksTest, SignalsArePassedOnOnceAndRanksMayFinish) {
  Launch(2,
         "n=0; trap 'n=$((n+1))' INT; touch $DIR/up$RANK; while test $n = 0; do sleep 0.02; done; "
         "sleep 0.1; echo $n >$DIR/n$RANK; exit 130");
  WaitForFile("up0");
  WaitForFile("up1");
  kill(launcher_, SIGINT);
  EXPECT_EQ(WaitForLauncher(), 130);
  EXPECT_EQ(ReadText(File("n0")), "1\n");
  EXPECT_EQ(ReadText(File("n1")), "1\n");
}

TEST_F(SpawnRanksTest, ASignalThatNobodyCatchesEndsTheRun) {
  Launch(2, "touch $DIR/up$RANK; exec sleep 60");
  WaitForFile("up0");
  WaitForFile("up1");
  kill(launcher_, SIGTERM);
  EXPECT_EQ(WaitForLauncher(), 128 + SIGTERM);
}

TEST_F(SpawnRanksTest, RanksDieWithTheirLauncher) {
  Launch(2, "echo $$ >$DIR/pid$RANK.tmp; mv $DIR/pid$RANK.tmp $DIR/pid$RANK; exec sleep 60");
  WaitForFile("pid0");
  WaitForFile("pid1");
  kill(launcher_, SIGKILL);
  EXPECT_EQ(WaitForLauncher(), 137);
  EXPECT_TRUE(Gone(std::stoi(ReadText(File("pid0")))));
  EXPECT_TRUE(Gone(std::stoi(ReadText(File("pid1")))));
}

TEST_F(SpawnRanksTest, SomebodyWhoKeepsAPipeOpenDoesNotHoldUpTheEnd) {
  EXPECT_EQ(Run(2, "test $RANK = 0 || { (sleep 60 & echo $! >$DIR/left); echo bye; }"), 0);
  EXPECT_THAT(ReadText(File("out")), HasSubstr("[rank 1] bye\n"));
  kill(std::stoi(ReadText(File("left"))), SIGKILL);
}

TEST(SpawnRanks, WhatCannotBeStartedIsAnError) {
  const SteadyClock clock;
  const auto missing = SpawnRanks({2, "/nonexistent/trainer", {}}, &clock);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().id(), ErrorId::kFileUnreadable);
  EXPECT_THAT(missing.status().what(), HasSubstr("/nonexistent/trainer"));
  const auto none = SpawnRanks({0, "sh", {}}, &clock);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().id(), ErrorId::kUsageError);
}

TEST(LinePrefixer, MarksWholeLinesOnly) {
  LinePrefixer prefixer("> ");
  EXPECT_EQ(prefixer.Feed(""), "");
  EXPECT_EQ(prefixer.Feed("a"), "");
  EXPECT_EQ(prefixer.Feed("b\n\nc\nd"), "> ab\n> \n> c\n");
  EXPECT_EQ(prefixer.Flush(), "> d\n");
  EXPECT_EQ(prefixer.Flush(), "");
}

TEST(LinePrefixer, AnEndlessLineComesOutInPieces) {
  LinePrefixer prefixer("> ");
  const std::string out = prefixer.Feed(std::string(70000, 'x')) + prefixer.Feed("y\n");
  EXPECT_EQ(out, "> " + std::string(70000, 'x') + "\n> y\n");
}

}  // namespace spawn_ranks_test
}  // namespace tidepool::trainer
