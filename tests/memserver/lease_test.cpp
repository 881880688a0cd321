// Until when a job without ranks is kept, for whom its lease runs, and what others are told meanwhile.
#include "memserver/job_lease.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/units.h"
#include "memserver/snapshot_builder.h"
#include "tests/fakes/small_trainer.h"

namespace tidepool::memserver {
namespace lease_test {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kHour = 3600 * kNsPerSecond;

WorldOptions ForHours() {
  WorldOptions options;
  options.loop.lease_ns = 8 * kHour;
  return options;
}

// A job of one rank with a sealed step.
struct OneJob {
  explicit OneJob(const WorldOptions& options) : world(options), trainer(&world, MakeSpec({.name = "gpt"})) {
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
    world.Post(AdminCommand{{.uid = 1000, .level = level}, std::make_shared<CommandTicket>(), SuspendJob{"gpt", suspended}});
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
  EXPECT_TRUE(t.Suspend(AdminLevel::kUser).ok()) << "its owner says the same: then the lease runs, from now on";
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
  EXPECT_THAT(t.world.TakeReply<Refused>()->why.why(), AllOf(HasSubstr("gpt holds"), Not(HasSubstr("kept"))));
  t.Detach();
  EXPECT_EQ(t.world.Join(MakeSpec({.name = "next"}), 0), nullptr);
  const std::string why = t.world.TakeReply<Refused>()->why.why();
  // The minute may change between the refusal and this line.
  const int64_t now = WallSeconds(), until = now + 8 * 3600;
  const auto told = [&](int64_t at) { return HasSubstr("without ranks, kept until " + FormatWhen(at, now)); };
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
  EXPECT_NEAR(static_cast<double>(row().kept_until), static_cast<double>(WallSeconds() + 8 * 3600), 60);
}

}  // namespace lease_test
}  // namespace tidepool::memserver
