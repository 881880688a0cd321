// A rank that asks for its job again while the last run of the job is still being taken down: it
// waits for what its own former self holds, and is not refused for want of it.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "memserver/jobs/job_desk.h"
#include "shm/spec/state_bytes.h"
#include "tests/fakes/small_trainer.h"

namespace tidepool::memserver {
namespace stale_incarnation_test {

constexpr uint32_t kAlice = 1000, kBob = 1001;

shm::JobSpec Pair() {
  return MakeSpec({.name = "pair", .world = 2});
}

shm::JobSpec Other(const std::string& name) {
  return MakeSpec({.name = name, .world = 2});
}

// Room for one pair, and no lease, so that a job is removed with its last rank.
WorldOptions RoomForOne() {
  WorldOptions options;
  options.pool_bytes = shm::StateBytesOf(Pair()).total();
  return options;
}

// A pair that is being removed, and cannot go before its save has ended.
class Leaving {
 public:
  Leaving() : world(RoomForOne()), trainer_(&world, Pair()) {
    EXPECT_TRUE(trainer_.JoinAll());
    trainer_.PutWeights(1);
    saver_ = trainer_.rank(0).connection();
    world.Post(SaveWeights{saver_, UniqueFd(), "w", 0});
    world.Settle();
    EXPECT_EQ(world.TakeSaves().size(), 1u);
    for (Rank rank = 0; rank < 2; ++rank) world.Lose(trainer_.rank(rank));
    world.Settle();
    EXPECT_EQ(world.tables().jobs.front()->phase, JobPhase::kRemoving);
    static_cast<void>(world.TakeAllReplies());
  }

  void LetGo() { world.AnswerSave(saver_, Status()); }
  // Asks, and is not refused.
  ConnectionId ComeAgain(Rank rank) {
    const ConnectionId connection = world.Reserve(Pair(), rank, kAlice);
    world.Settle();
    EXPECT_FALSE(world.TakeReply<Refused>().has_value());
    return connection;
  }
  bool IsGranted(ConnectionId connection) {
    const auto granted = world.TakeReply<ReserveGranted>();
    return granted && granted->connection == connection;
  }
  ErrorId RefusedWith() {
    const auto refused = world.TakeReply<Refused>();
    return refused ? refused->why.id() : ErrorId::kNone;
  }

  ServeWorld world;

 private:
  SmallTrainer trainer_;
  ConnectionId saver_ = 0;
};

// The end of the old connection and the greeting of the new one come together.
TEST(StaleIncarnation, IsWaitedForWhereItsEndAndTheNewRankComeInOneTurn) {
  ServeWorld world(RoomForOne());
  const auto zero = world.Join(Pair(), 0), one = world.Join(Pair(), 1);
  ASSERT_TRUE(zero != nullptr && one != nullptr);

  world.Lose(*one);
  world.Settle();
  world.Lose(*zero);
  const ConnectionId again = world.Reserve(Pair(), 0);
  const ConnectionId other = world.Reserve(Pair(), 1);
  world.Settle();

  EXPECT_FALSE(world.TakeReply<Refused>().has_value());
  EXPECT_EQ(world.TakeReply<ReserveGranted>()->connection, again);
  EXPECT_EQ(world.TakeReply<ReserveGranted>()->connection, other);
}

TEST(StaleIncarnation, IsWaitedForAsLongAsASaveHoldsIt) {
  Leaving leaving;
  const ConnectionId zero = leaving.ComeAgain(0), one = leaving.ComeAgain(1);
  EXPECT_FALSE(leaving.world.TakeReply<ReserveGranted>().has_value());
  EXPECT_FALSE(leaving.world.TakeReply<Queued>().has_value())
      << "they did not ask to wait for jobs of others";

  leaving.LetGo();
  leaving.world.Settle();
  EXPECT_TRUE(leaving.IsGranted(zero));
  EXPECT_TRUE(leaving.IsGranted(one));
  EXPECT_TRUE(leaving.world.jobs().waiting().empty());
}

// Its memory is free, and the first of the ranks that wait has not been served yet.
TEST(StaleIncarnation, ARankThatComesBetweenItsEndAndTheNextTurnIsLetInToo) {
  Leaving leaving;
  const ConnectionId zero = leaving.ComeAgain(0);
  leaving.LetGo();
  while (!leaving.world.tables().jobs.empty()) leaving.world.loop().Turn();
  ASSERT_EQ(leaving.world.jobs().waiting().size(), 1u);

  const ConnectionId one = leaving.world.Reserve(Pair(), 1, kAlice);
  leaving.world.Settle();
  EXPECT_EQ(leaving.RefusedWith(), ErrorId::kNone);
  EXPECT_TRUE(leaving.IsGranted(one));
  EXPECT_TRUE(leaving.IsGranted(zero));
}

TEST(StaleIncarnation, ItsPlaceIsTakenBeforeThoseThatWaitForRoom) {
  Leaving leaving;
  leaving.world.MayWait(true);
  leaving.world.Reserve(Other("patient"), 0, kBob);
  leaving.world.MayWait(false);
  leaving.world.Settle();
  const ConnectionId zero = leaving.ComeAgain(0);

  leaving.LetGo();
  leaving.world.Settle();
  EXPECT_TRUE(leaving.IsGranted(zero));
  ASSERT_EQ(leaving.world.jobs().waiting().size(), 1u);
  EXPECT_EQ(leaving.world.jobs().waiting().front().event.spec->name, "patient");
}

// What it waits for nobody else could have; so it holds nobody up.
TEST(StaleIncarnation, HoldsUpNobodyWhoseRoomIsThere) {
  WorldOptions options = RoomForOne();
  options.pool_bytes *= 2;
  options.loop.quotas = {{UserAccount(kAlice), {.limit = options.pool_bytes / 2}}};
  ServeWorld world(options);
  SmallTrainer trainer(&world, Pair());
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(1);
  world.Post(SaveWeights{trainer.rank(0).connection(), UniqueFd(), "w", 0});
  world.Settle();
  for (Rank rank = 0; rank < 2; ++rank) world.Lose(trainer.rank(rank));
  world.Settle();
  world.Reserve(Pair(), 0, kAlice);
  world.Settle();
  ASSERT_EQ(world.jobs().waiting().size(), 1u);

  EXPECT_NE(world.Join(Other("bob"), 0, kBob), nullptr);
}

TEST(StaleIncarnation, IsNotThatOfAnotherUser) {
  Leaving leaving;
  leaving.world.Reserve(Pair(), 0, kBob);
  leaving.world.Settle();
  EXPECT_EQ(leaving.RefusedWith(), ErrorId::kPoolFull);
}

TEST(StaleIncarnation, IsWaitedForInVainWhereTheNewJobIsLargerThanThePool) {
  Leaving leaving;
  leaving.world.Reserve(MakeSpec({.name = "pair", .world = 2, .chunks = 9}), 0, kAlice);
  leaving.world.Settle();
  EXPECT_EQ(leaving.RefusedWith(), ErrorId::kNone);
  leaving.LetGo();
  leaving.world.Settle();
  EXPECT_EQ(leaving.RefusedWith(), ErrorId::kPoolFull);
  EXPECT_TRUE(leaving.world.jobs().waiting().empty());
}

TEST(StaleIncarnation, WhoDiesMeanwhileIsForgotten) {
  Leaving leaving;
  leaving.world.Post(ConnectionLost{leaving.ComeAgain(0), "killed by the test"});
  leaving.world.Settle();
  EXPECT_TRUE(leaving.world.jobs().waiting().empty());
  leaving.LetGo();
  leaving.world.Settle();
  EXPECT_TRUE(leaving.world.tables().jobs.empty());
}

// An admin who drains the server wants no job to begin.
TEST(StaleIncarnation, IsNotWaitedForWhileTheServerIsDrained) {
  Leaving leaving;
  leaving.ComeAgain(0);
  EXPECT_TRUE(leaving.world.Command(DrainJobs{true}).ok());
  leaving.world.Settle();
  EXPECT_EQ(leaving.RefusedWith(), ErrorId::kTooManySessions);
  EXPECT_TRUE(leaving.world.jobs().waiting().empty());
}

}  // namespace stale_incarnation_test
}  // namespace tidepool::memserver
