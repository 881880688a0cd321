#include "trainer/launch/rank_roll.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "base/clock.h"
#include "base/unique_fd.h"

namespace tidepool::trainer {
namespace rank_roll_test {

using ::testing::HasSubstr;
using State = RollEntry::State;

RollEntry Read(const std::string& path, uint32_t rank, uint32_t ranks = 3) {
  const auto view = RankRollView::Open(path, ranks);
  EXPECT_TRUE(view.ok()) << view.status().Format();
  return view.ok() ? view.value().Read(rank) : RollEntry();
}

TEST(RankRollTest, EachRankHasItsOwnLives) {
  auto roll = RankRoll::Make(3);
  ASSERT_TRUE(roll.ok()) << roll.status().Format();
  const auto view = RankRollView::Open(roll.value().path(), 3);
  ASSERT_TRUE(view.ok()) << view.status().Format();
  for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(view.value().Read(rank), RollEntry());

  constexpr pid_t kHighest = 4'194'303;  // that Linux gives out
  roll.value().NoteStart(1, kHighest);
  EXPECT_EQ(view.value().Read(1), (RollEntry{.state = State::kComing, .life = 1, .pid = kHighest}));
  roll.value().NoteDeath(1);
  EXPECT_EQ(view.value().Read(1), (RollEntry{.state = State::kNothing, .life = 1}));
  roll.value().NoteStart(1, 7);
  EXPECT_EQ(view.value().Read(1), (RollEntry{.state = State::kComing, .life = 2, .pid = 7}));
  roll.value().NoteDeath(1);
  roll.value().NoteEnd(1, 255);
  EXPECT_EQ(view.value().Read(1), (RollEntry{.state = State::kEnded, .life = 2, .exit_code = 255}));
  EXPECT_EQ(view.value().Read(0), RollEntry());
  EXPECT_EQ(view.value().Read(2), RollEntry());
}

TEST(RankRollTest, AnotherProcessSeesWhatIsNotedLater) {
  auto roll = RankRoll::Make(3);
  ASSERT_TRUE(roll.ok());
  roll.value().NoteStart(2, 7);
  const std::string path = roll.value().path();
  int is_open[2];
  ASSERT_EQ(pipe(is_open), 0);
  const pid_t reader = fork();
  if (reader == 0) {
    const auto view = RankRollView::Open(path, 3);
    if (!view.ok() || view.value().Read(2).pid != 7 || write(is_open[1], "o", 1) != 1) _exit(1);
    while (view.value().Read(2).state != State::kEnded) SteadyClock().SleepNs(kNsPerMs);
    _exit(view.value().Read(2).exit_code);
  }
  close(is_open[1]);
  char opened = 0;
  EXPECT_EQ(read(is_open[0], &opened, 1), 1);
  close(is_open[0]);
  roll.value().NoteEnd(2, 75);
  int status = 0;
  ASSERT_EQ(waitpid(reader, &status, 0), reader);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 75);
}

TEST(RankRollTest, AProcessLivesUntilItHasEnded) {
  EXPECT_TRUE(ProcessLives(getpid()));
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  EXPECT_TRUE(ProcessLives(child));
  kill(child, SIGSTOP);
  EXPECT_TRUE(ProcessLives(child)) << "it may go on";
  kill(child, SIGKILL);
  siginfo_t ended{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT), 0);
  EXPECT_FALSE(ProcessLives(child)) << "nobody has collected it yet";
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(ProcessLives(child));
}

// The bytes of a roll of three ranks, and what they become.
class DamagedRollTest : public ::testing::Test {
 protected:
  static constexpr size_t kVersionAt = 8, kRanksAt = 12, kWordsAt = 16;

  DamagedRollTest() {
    auto roll = RankRoll::Make(3);
    for (uint32_t rank = 0; rank < 3; ++rank) roll.value().NoteStart(rank, 7);
    std::ostringstream text;
    text << std::ifstream(roll.value().path(), std::ios::binary).rdbuf();
    bytes_ = text.str();
  }
  void Put(size_t at, uint64_t word, size_t size) { std::memcpy(bytes_.data() + at, &word, size); }
  // A path for as long as this object lives.
  std::string Write(int seals = F_SEAL_SHRINK) {
    fd_ = UniqueFd(memfd_create("damaged", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(write(fd_.get(), bytes_.data(), bytes_.size()), static_cast<ssize_t>(bytes_.size()));
    EXPECT_EQ(fcntl(fd_.get(), F_ADD_SEALS, seals), 0);
    return "/proc/self/fd/" + std::to_string(fd_.get());
  }
  static void ExpectRefused(const std::string& path, const std::string& why, uint32_t ranks = 3) {
    const auto view = RankRollView::Open(path, ranks);
    ASSERT_FALSE(view.ok()) << why;
    EXPECT_EQ(view.status().id(), ErrorId::kFileUnreadable);
    EXPECT_THAT(view.status().Format(), HasSubstr(why));
  }

  std::string bytes_;
  UniqueFd fd_;
};

TEST_F(DamagedRollTest, WhatIsNoRollIsRefused) {
  EXPECT_EQ(Read(Write(), 2).pid, 7) << "nothing is wrong yet";
  ExpectRefused(Write(), "another size", 2);
  ExpectRefused(Write(), "another size", 4);
  ExpectRefused(Write(F_SEAL_GROW), "not sealed");
  ExpectRefused("/nonexistent", "No such file");
  ExpectRefused("/dev/null", "not sealed");
  const std::string whole = bytes_;
  Put(0, 0x2070'6F6F, 4);
  ExpectRefused(Write(), "no roll");
  bytes_ = whole;
  Put(kVersionAt, 2, 4);
  ExpectRefused(Write(), "version 2");
  bytes_ = whole;
  Put(kRanksAt, 4, 4);
  ExpectRefused(Write(), "of 4 ranks");
  bytes_ = whole.substr(0, whole.size() - 1);
  ExpectRefused(Write(), "another size");
  bytes_.clear();
  ExpectRefused(Write(), "another size");
}

TEST_F(DamagedRollTest, AWordThatNoLauncherWritesSaysNothing) {
  Put(kWordsAt, 3, 8);      // a state that there is not
  Put(kWordsAt + 8, 1, 8);  // on its way without a process
  Put(kWordsAt + 16, ~uint64_t{0}, 8);
  const std::string path = Write();
  for (uint32_t rank = 0; rank < 3; ++rank)
    EXPECT_EQ(Read(path, rank).state, State::kNothing) << rank;
}

}  // namespace rank_roll_test
}  // namespace tidepool::trainer
