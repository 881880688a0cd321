// Awaited ranks: their processes are watched, and never taken for others.
#include "memserver/control/rank_watch.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "base/clock.h"
#include "memserver/control/peer_identity.h"

namespace tidepool::memserver {
namespace rank_watch_test {

// A process that does nothing until it is killed.
class Sleeper {
 public:
  Sleeper() : pid_(fork()) {
    if (pid_ != 0) return;
    prctl(PR_SET_NAME, "a ) b (c) 1 2");
    for (;;) pause();
  }
  ~Sleeper() { Kill(); }
  void Kill() {
    if (pid_ > 0) kill(pid_, SIGKILL);
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  int32_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

AwaitRank Awaited(int32_t pid, uint64_t nonce = 7) {
  return {.job = 3, .rank = 1, .nonce = nonce, .pid = pid, .process_start = ReadProcessStart(pid)};
}

bool Readable(const RankWatch& watch, int64_t limit_ms) {
  pollfd entry{watch.event_fd(), POLLIN, 0};
  return poll(&entry, 1, static_cast<int>(limit_ms)) == 1;
}

TEST(ProcessStart, IsTheSameForALifeAndDiffersFromOthers) {
  const uint64_t own = ReadProcessStart(getpid());
  EXPECT_GT(own, 0U);
  EXPECT_EQ(ReadProcessStart(getpid()), own);
  EXPECT_LT(ReadProcessStart(1), own);
  EXPECT_EQ(ReadProcessStart(0), 0U);
  EXPECT_EQ(ReadProcessStart(1 << 30), 0U);
}

TEST(ProcessStart, IsFoundBehindANameWithSpacesAndBrackets) {
  Sleeper sleeper;
  SteadyClock().SleepNs(20 * kNsPerMs);  // it has its name by now
  EXPECT_GE(ReadProcessStart(sleeper.pid()), ReadProcessStart(getpid()));
}

TEST(RankWatch, TellsOfAProcessThatEndsOnce) {
  RankWatch watch;
  Sleeper sleeper;
  ASSERT_TRUE(watch.Watch(Awaited(sleeper.pid())));
  EXPECT_FALSE(Readable(watch, 20));
  EXPECT_TRUE(watch.TakeLost().empty());
  sleeper.Kill();
  ASSERT_TRUE(Readable(watch, 5000));
  const auto lost = watch.TakeLost();
  ASSERT_EQ(lost.size(), 1U);
  EXPECT_EQ(lost[0].job, 3U);
  EXPECT_EQ(lost[0].rank, 1U);
  EXPECT_EQ(lost[0].nonce, 7U);
  EXPECT_FALSE(Readable(watch, 0));
  EXPECT_TRUE(watch.TakeLost().empty());
  EXPECT_EQ(watch.watched(), 0U);
}

TEST(RankWatch, AProcessThatHasEndedIsLostAtOnce) {
  RankWatch watch;
  Sleeper sleeper;
  const AwaitRank rank = Awaited(sleeper.pid());
  sleeper.Kill();
  EXPECT_FALSE(watch.Watch(rank));
}

TEST(RankWatch, AnotherProcessWithThePidIsNotTheRank) {
  RankWatch watch;
  Sleeper sleeper;
  AwaitRank rank = Awaited(sleeper.pid());
  --rank.process_start;
  EXPECT_FALSE(watch.Watch(rank));
  EXPECT_EQ(watch.watched(), 0U);
  sleeper.Kill();
  EXPECT_FALSE(Readable(watch, 20)) << "and it is not watched";
}

TEST(RankWatch, AStartThatCannotBeReadMakesNoOtherProcessOfARank) {
  const Sleeper sleeper;
  AwaitRank of_old = Awaited(sleeper.pid());
  of_old.process_start = 0;  // not read when it attached
  RankWatch watch;
  EXPECT_TRUE(watch.Watch(of_old));
  EXPECT_EQ(watch.watched(), 1U);

  // With one descriptor left, which the pidfd takes.
  const AwaitRank rank = Awaited(sleeper.pid(), 8);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  rlimit low = limit;
  low.rlim_cur = 200;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  std::vector<UniqueFd> filler;
  for (UniqueFd fd(dup(STDIN_FILENO)); fd.valid(); fd = UniqueFd(dup(STDIN_FILENO)))
    filler.push_back(std::move(fd));
  filler.pop_back();
  EXPECT_TRUE(watch.Watch(rank));
  filler.clear();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(watch.watched(), 2U) << "its pidfd tells of its end";
}

TEST(RankWatch, AnUnknownProcessIsLeftToItsLease) {
  RankWatch watch;
  EXPECT_TRUE(watch.Watch({.job = 3, .rank = 1, .nonce = 7, .pid = 0, .process_start = 0}));
  EXPECT_EQ(watch.watched(), 0U);
}

TEST(RankWatch, ARankThatIsBackIsForgottenAndNoOther) {
  RankWatch watch;
  Sleeper first, second;
  ASSERT_TRUE(watch.Watch(Awaited(first.pid(), 7)));
  ASSERT_TRUE(watch.Watch(Awaited(second.pid(), 8)));
  watch.Forget({3, 1, 7});
  watch.Forget({3, 2, 8});
  watch.Forget({4, 1, 8});
  first.Kill();
  EXPECT_FALSE(Readable(watch, 20));
  second.Kill();
  ASSERT_TRUE(Readable(watch, 5000));
  ASSERT_EQ(watch.TakeLost().size(), 1U);
}

}  // namespace rank_watch_test
}  // namespace tidepool::memserver
