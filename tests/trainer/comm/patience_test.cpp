#include "trainer/comm/meeting/patience.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "base/clock.h"

namespace tidepool::trainer {
namespace patience_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Time is a number of seconds, and what the launcher knows a table.
class PatienceTest : public ::testing::Test {
 protected:
  static constexpr int64_t kLimit = 10;

  Patience Begin(int64_t seconds, int64_t limit = kLimit) {
    Patience::Terms terms{.world = 8, .limit_ns = limit * kNsPerSecond, .doing = "meeting"};
    terms.standing = [this](uint32_t rank) { return known_[rank]; };
    terms.say = [this](const std::string& line) { told_.push_back(line); };
    return Patience(terms, seconds * kNsPerSecond);
  }
  static void Hear(Patience* patience, uint32_t rank, int64_t seconds) {
    patience->Heard(rank, seconds * kNsPerSecond);
  }
  static Status Wait(Patience* patience, const std::vector<uint32_t>& missing, int64_t seconds) {
    return patience->Wait(missing, seconds * kNsPerSecond);
  }
  static void ExpectOver(const Status& ended, const std::string& what, const std::string& why) {
    EXPECT_EQ(ended.id(), ErrorId::kRanksMissing);
    EXPECT_EQ(ended.what(), "meeting: " + what);
    EXPECT_THAT(ended.Format(), HasSubstr(why));
  }
  void Comes(uint32_t rank) {
    known_[rank] = {.kind = RankStanding::Kind::kComing, .pid = static_cast<int32_t>(100 + rank)};
  }
  void Ends(uint32_t rank, int code) {
    known_[rank] = {.kind = RankStanding::Kind::kEnded, .exit_code = code};
  }

  std::map<uint32_t, RankStanding> known_;
  std::vector<std::string> told_;
};

TEST_F(PatienceTest, ARankOfWhichNothingIsHeardIsWaitedForFromTheBeginOn) {
  Patience patience = Begin(1000);
  EXPECT_TRUE(Wait(&patience, {1}, 1000).ok());
  EXPECT_TRUE(Wait(&patience, {1}, 1010).ok());
  ExpectOver(Wait(&patience, {1}, 1011), "rank 1 did not come",
             "not within 10.0 s of the last sign of life");
}

TEST_F(PatienceTest, TheLimitCountsFromTheLastSignOfLife) {
  Patience patience = Begin(0);
  Hear(&patience, 1, 9);
  EXPECT_TRUE(Wait(&patience, {1}, 19).ok());
  Hear(&patience, 1, 19);
  EXPECT_TRUE(Wait(&patience, {1}, 29).ok());
  ExpectOver(Wait(&patience, {1}, 30), "rank 1 did not come", "not within");
}

TEST_F(PatienceTest, EachRankHasItsOwnLimit) {
  Patience patience = Begin(0);
  for (const uint32_t rank : {1, 3, 4}) Hear(&patience, rank, 5);
  ExpectOver(Wait(&patience, {1, 2, 3, 5}, 11), "rank 2, 5 did not come", "not within");
  EXPECT_TRUE(Wait(&patience, {1, 3, 4}, 15).ok());
  EXPECT_TRUE(Wait(&patience, {}, 1000).ok()) << "nobody is missing";
}

TEST_F(PatienceTest, ARankThatIsOnItsWayIsWaitedForWithoutEnd) {
  Patience patience = Begin(0);
  Comes(1);
  for (int64_t seconds = 0; seconds < 100'000; seconds += 7)
    ASSERT_TRUE(Wait(&patience, {1}, seconds).ok()) << seconds;
}

// What the launcher says does not count from the begin either.
TEST_F(PatienceTest, WhenARanksProcessIsGoneTheLimitBegins) {
  Patience patience = Begin(0);
  Comes(1);
  EXPECT_TRUE(Wait(&patience, {1}, 500).ok());
  known_.clear();
  EXPECT_TRUE(Wait(&patience, {1}, 510).ok());
  ExpectOver(Wait(&patience, {1}, 511), "rank 1 did not come", "not within");
}

TEST_F(PatienceTest, ARankThatHasEndedForGoodEndsTheWaitAtOnce) {
  Patience patience = Begin(0);
  Comes(1);
  Ends(2, 3);
  ExpectOver(Wait(&patience, {1, 2}, 0), "rank 2 did not come",
             "rank 2 has ended for good, with exit code 3");
  Ends(2, 128 + 9);
  ExpectOver(Wait(&patience, {1, 2}, 0), "rank 2 did not come",
             "rank 2 has ended for good, by signal 9");
  EXPECT_TRUE(Wait(&patience, {1}, 0).ok()) << "whoever has come may end";
}

TEST_F(PatienceTest, TheUserIsToldOnceAMinuteOfWhomAndWhatToDo) {
  Patience patience = Begin(0);
  Comes(1);
  for (int64_t seconds = 0; seconds < 10; ++seconds)
    ASSERT_TRUE(Wait(&patience, {1}, seconds).ok());
  EXPECT_THAT(told_, IsEmpty());
  for (int64_t seconds = 10; seconds <= 130; ++seconds)
    ASSERT_TRUE(Wait(&patience, {1}, seconds).ok());
  const auto line = [](const std::string& time) {
    return "waiting for rank 1 (pid 101), which lives and is on its way, for " + time +
           ". A rank that is stuck is waited for too: end it with kill -9 and its pid, or the run "
           "with Ctrl-C";
  };
  EXPECT_THAT(told_, ElementsAre(line("10.0 s"), line("1:10 min"), line("2:10 min")));
}

TEST_F(PatienceTest, TheUserIsToldOfRanksWithoutASignOfLifeUntilWhen) {
  Patience patience = Begin(0, 100);
  Hear(&patience, 2, 3);
  Hear(&patience, 4, 50);
  Comes(3);
  EXPECT_TRUE(Wait(&patience, {2, 3, 4}, 59).ok());
  EXPECT_THAT(told_, IsEmpty()) << "nobody has been missing for a minute";
  EXPECT_TRUE(Wait(&patience, {2, 3, 4}, 63).ok());
  ASSERT_EQ(told_.size(), 1U);
  EXPECT_THAT(told_[0], HasSubstr("for rank 2, for 1:00 min of 1:40 min at most without a sign of "
                                  "life; for rank 3 (pid 103)"));
  EXPECT_THAT(told_[0], Not(HasSubstr("rank 4"))) << "it was here a moment ago";
}

TEST_F(PatienceTest, OfManyRanksAFewAreNamed) {
  Patience patience = Begin(0);
  std::vector<uint32_t> missing;
  for (uint32_t rank = 1; rank < 8; ++rank) missing.push_back(rank);
  EXPECT_TRUE(Wait(&patience, missing, 10).ok());
  ASSERT_EQ(told_.size(), 1U);
  EXPECT_THAT(told_[0], HasSubstr("for rank 4,"));
  EXPECT_THAT(told_[0], Not(HasSubstr("rank 5")));
  EXPECT_THAT(told_[0], HasSubstr("; and for 3 more"));
  EXPECT_THAT(told_[0], Not(HasSubstr("Ctrl-C"))) << "nobody is known to live";
}

// Another rank tells the user, or nobody asked to be told, and nothing is known.
TEST_F(PatienceTest, NothingIsToldWhereNobodyIsTold) {
  Patience patience = Begin(0);
  Comes(1);
  EXPECT_TRUE(patience.Wait({1}, 10 * kNsPerSecond, Patience::Telling::kNo).ok());
  EXPECT_THAT(told_, IsEmpty());
  Patience alone({.world = 2, .limit_ns = 100 * kNsPerSecond, .doing = "meeting"}, 0);
  EXPECT_TRUE(alone.Wait({1}, 90 * kNsPerSecond).ok());
  ExpectOver(alone.Wait({1}, 101 * kNsPerSecond), "rank 1 did not come", "not within 1:40 min");
}

}  // namespace patience_test
}  // namespace tidepool::trainer
