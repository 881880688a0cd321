// Until when a job without ranks is kept, for whom its lease runs, and what others are told
// meanwhile.
#include "memserver/jobs/job_lease.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/units.h"
#include "memserver/residency/kept/lost_jobs.h"
#include "memserver/jobs/rows/snapshot_builder.h"
#include "shm/spec/state_bytes.h"
#include "tests/fakes/small_trainer.h"

namespace tidepool::memserver {
namespace lease_test {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kHour = 3600 * kNsPerSecond;

WorldOptions ForHours() {
  WorldOptions options;
  options.loop.times.lease_ns = 8 * kHour;
  return options;
}

// A job of one rank with a sealed step.
struct OneJob {
  explicit OneJob(const WorldOptions& options)
      : world(options), trainer(&world, MakeSpec({.name = "gpt"})) {
    EXPECT_TRUE(trainer.JoinAll());
    trainer.PutWeights(1);
    trainer.Step({.seed = 1});
  }
  void Detach() {
    world.Lose(trainer.rank(0));
    world.Settle();
  }
  void Pass(int64_t ns) {
    world.clock().Advance(ns);
    world.Settle();
  }
  bool HasJob() const { return !world.tables().jobs.empty(); }
  const Job& job() const { return *world.tables().jobs.front(); }
  Status Suspend(AdminLevel level, bool suspended = true) {
    world.Post(AdminCommand{{.uid = 1000, .level = level},
                            std::make_shared<CommandTicket>(),
                            SuspendJob{"gpt", suspended}});
    world.loop().Turn();
    return world.TakeReply<CommandDone>()->result;
  }
  ServeWorld world;
  SmallTrainer trainer;
};

TEST(Lease, RunsFromTheLastRanksEndOn) {
  OneJob t(ForHours());
  EXPECT_EQ(LeaseEndNs(t.job(), t.world.options().loop), std::nullopt) << "it has a rank";
  t.Detach();
  const int64_t left = t.world.clock().NowNs();
  EXPECT_EQ(LeaseEndNs(t.job(), t.world.options().loop), left + 8 * kHour);
  t.Pass(8 * kHour - 1);
  EXPECT_TRUE(t.HasJob());
  t.Pass(1);
  EXPECT_FALSE(t.HasJob());
}

TEST(Lease, IsNotEscapedByAUserWhoSuspendsItsOwnJob) {
  OneJob t(ForHours());
  EXPECT_TRUE(t.Suspend(AdminLevel::kUser).ok());
  t.Detach();
  t.Pass(8 * kHour);
  EXPECT_FALSE(t.HasJob()) << "it would hold a place, and its room, for ever";
}

TEST(Lease, DoesNotRunWhileAnOperatorHasSuspendedTheJob) {
  OneJob t(ForHours());
  EXPECT_TRUE(t.Suspend(AdminLevel::kOperator).ok());
  t.Detach();
  EXPECT_EQ(LeaseEndNs(t.job(), t.world.options().loop), kKeptWithoutEnd);
  t.Pass(1000 * kHour);
  ASSERT_TRUE(t.HasJob());
  EXPECT_TRUE(t.Suspend(AdminLevel::kUser).ok())
      << "its owner says the same: then the lease runs, from now on";
  t.Pass(8 * kHour - 1);
  EXPECT_TRUE(t.HasJob());
  t.Pass(1);
  EXPECT_FALSE(t.HasJob());
}

// Else a rank that cannot be watched would keep the job's name from its successor for hours.
TEST(Lease, OfHoursIsNotHowLongRanksOfTheServerBeforeAreExpected) {
  WorldOptions options = ForHours();
  options.loop.await_ns_max = 120 * kNsPerSecond;
  OneJob t(options);
  t.world.Restart();
  t.Pass(options.loop.await_ns_max - 1);
  ASSERT_TRUE(t.job().IsAwaited(0));
  t.Pass(1);
  ASSERT_TRUE(t.HasJob()) << "the job itself is kept";
  EXPECT_FALSE(t.job().IsAwaited(0));
  EXPECT_NE(t.world.Join(t.trainer.spec(), 0), nullptr);
}

TEST(Lease, TellsWhoLacksRoomUntilWhenItIsHeld) {
  WorldOptions options = ForHours();
  options.pool_bytes = shm::StateBytesOf(MakeSpec({.name = "gpt"})).total() * 3 / 2;
  OneJob t(options);
  EXPECT_EQ(t.world.Join(MakeSpec({.name = "next"}), 0), nullptr);
  EXPECT_THAT(t.world.TakeReply<Refused>()->why.why(),
              AllOf(HasSubstr("gpt holds"), Not(HasSubstr("kept"))));
  t.Detach();
  EXPECT_EQ(t.world.Join(MakeSpec({.name = "next"}), 0), nullptr);
  const std::string why = t.world.TakeReply<Refused>()->why.why();
  // The minute may change between the refusal and this line.
  const int64_t now = WallSeconds(), until = now + 8 * 3600;
  const auto told = [&](int64_t at) {
    return HasSubstr("without ranks, kept until " + FormatWhen(at, now));
  };
  EXPECT_THAT(why, AnyOf(told(until), told(until - 60))) << "the newcomer knows when to come again";
  EXPECT_TRUE(t.Suspend(AdminLevel::kOperator).ok());
  EXPECT_EQ(t.world.Join(MakeSpec({.name = "next"}), 0), nullptr);
  EXPECT_THAT(t.world.TakeReply<Refused>()->why.why(), HasSubstr("kept without end"));
}

TEST(Lease, IsInTheSnapshot) {
  OneJob t(ForHours());
  const auto row = [&t] {
    t.world.Post(SnapshotWanted{});
    t.world.Settle();
    return t.world.TakeReply<SnapshotReady>()->snapshot->jobs.front();
  };
  EXPECT_EQ(row().lease_ns, 8 * kHour);
  EXPECT_EQ(row().kept_until, 0) << "it has a rank";
  t.Detach();
  EXPECT_NEAR(static_cast<double>(row().kept_until), static_cast<double>(WallSeconds() + 8 * 3600),
              60);
}

std::vector<std::string> LostNames(const ServeWorld& world) {
  std::vector<std::string> names;
  for (const LostJob& job : world.tables().lost.all()) names.push_back(job.name);
  return names;
}

// What a run that would go on with such a job asks for.
TEST(Lost, IsAJobWhoseLeaseHasEndedUntilThereAreWeightsOfThatNameAgain) {
  OneJob t(ForHours());
  t.Detach();
  t.Pass(8 * kHour);
  ASSERT_EQ(LostNames(t.world), std::vector<std::string>{"gpt"});
  const LostJob& lost = t.world.tables().lost.all().front();
  EXPECT_EQ(lost.uid, 1000u);
  EXPECT_EQ(lost.version, 1u);
  EXPECT_THAT(lost.why, HasSubstr("8:00:00"));
  {
    SmallTrainer again(&t.world, t.trainer.spec());
    ASSERT_TRUE(again.JoinAll());
    t.world.Lose(again.rank(0));
    t.world.Settle();
    EXPECT_EQ(LostNames(t.world).size(), 1u) << "it has loaded nothing: it may only have looked";
  }
  SmallTrainer again(&t.world, t.trainer.spec());
  ASSERT_TRUE(again.JoinAll());
  again.PutWeights(1);
  again.Step({.seed = 1});
  again.LeaveAll();
  t.world.Settle();
  EXPECT_TRUE(LostNames(t.world).empty());
}

TEST(Lost, IsNoJobThatWentInGoodOrderOrThatSomebodyReleasedOrThatSealedNothing) {
  OneJob t(ForHours());
  t.trainer.LeaveAll();
  t.world.Settle();
  SmallTrainer second(&t.world, t.trainer.spec());
  ASSERT_TRUE(second.JoinAll());
  second.PutWeights(1);
  second.Step({.seed = 1});
  EXPECT_TRUE(t.world.Command(ReleaseJob{"gpt", true}).ok());
  t.world.Settle();
  SmallTrainer third(&t.world, t.trainer.spec());
  ASSERT_TRUE(third.JoinAll());
  third.PutWeights(1);
  t.world.Lose(third.rank(0));
  t.world.Settle();
  t.Pass(8 * kHour);
  EXPECT_FALSE(t.HasJob());
  EXPECT_TRUE(LostNames(t.world).empty());
}

TEST(Lost, IsAJobThatTheNextServerCannotTakeOver) {
  OneJob t(ForHours());
  t.Detach();
  // Its check is still that of the present version.
  t.job().states->chunk(1).record->stamp -= uint64_t{1} << 24;
  t.world.Restart();
  EXPECT_FALSE(t.HasJob());
  EXPECT_EQ(LostNames(t.world), std::vector<std::string>{"gpt"});
}

TEST(LostJobs, OfOneUserTakeNoPlaceOfOthers) {
  LostJobs lost;
  const auto note = [&lost](uint32_t uid, size_t number) {
    lost.Note({std::to_string(number), uid, 1, 0, "gone"});
  };
  const auto count = [&lost](uint32_t uid) {
    return std::count_if(lost.all().begin(), lost.all().end(),
                         [uid](const LostJob& job) { return job.uid == uid; });
  };
  note(7, 0);
  for (size_t i = 0; i < 2 * kLostOfUserMax; ++i) note(8, i);
  EXPECT_EQ(count(8), static_cast<std::ptrdiff_t>(kLostOfUserMax));
  EXPECT_EQ(lost.all().back().name, std::to_string(2 * kLostOfUserMax - 1))
      << "the latest are kept";
  for (uint32_t uid = 100; uid < 100 + kLostJobsMax / kLostOfUserMax; ++uid) {
    for (size_t i = 0; i < kLostOfUserMax; ++i) note(uid, i);
  }
  EXPECT_EQ(lost.all().size(), kLostJobsMax);
  EXPECT_EQ(count(7), 1) << "whoever has many gives way";
  note(7, 0);
  EXPECT_EQ(count(7), 1) << "one a name";
  lost.Forget("0", 8);
  EXPECT_EQ(count(7), 1) << "of another user";
  lost.Forget("0", 7);
  EXPECT_EQ(count(7), 0);
}

}  // namespace lease_test
}  // namespace tidepool::memserver
