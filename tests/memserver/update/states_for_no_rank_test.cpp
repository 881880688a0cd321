// A process that is no rank takes the states of a job: of its own user alone, whether the job
// trains or is kept without ranks; and it holds nobody when it is gone.
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "tests/memserver/update/states_taken.h"

namespace tidepool::memserver {
namespace states_for_no_rank_test {

constexpr ConnectionId kNoRank = 4711;

// What a process of user 1000, or of another one, is given of the job.
std::optional<StatesGiven> AskFor(ServeWorld* world, const std::string& job, uint32_t uid = 1000) {
  world->Post(AskStates{kNoRank, uid, job, Memory()});
  world->Settle();
  auto given = world->TakeReply<StatesGiven>();
  if (!given) {
    EXPECT_FALSE(world->TakeReply<Refused>()->why.fix().empty());
  }
  return given;
}

TEST(StatesForNoRank, AreThoseOfTheSealedStepWhileTheJobTrains) {
  ServeWorld world;
  SmallTrainer trainer(&world, MakeSpec({}));
  ASSERT_TRUE(trainer.JoinAll());
  EXPECT_FALSE(AskFor(&world, trainer.spec().name)) << "no weights yet";
  trainer.PutWeights(7);
  for (uint64_t step = 1; step <= 3; ++step) ASSERT_EQ(trainer.Step({.seed = step}).error, 0U);
  SaveRequest ranks = Ask(&world, &trainer);
  const States expected = Take(&ranks);
  world.AnswerSave(ranks.connection, {});

  const auto given = AskFor(&world, trainer.spec().name);
  ASSERT_TRUE(given);
  EXPECT_EQ(given->version, 3U);
  EXPECT_EQ(given->spec->parameters.size(), trainer.spec().parameters.size());
  std::vector<SaveRequest> saves = world.TakeSaves();
  ASSERT_EQ(saves.size(), 1U);
  EXPECT_EQ(saves.front().stream->memory, given->memory);
  ASSERT_EQ(trainer.Step({.seed = 4}).error, 0U);
  EXPECT_TRUE(Take(&saves.front()) == expected);
  world.AnswerSave(kNoRank, {});
  world.Settle();
  EXPECT_EQ(world.tables().jobs.front()->states->saved(0).version, 4U);
  EXPECT_TRUE(world.TakeReply<SaveDone>()->result.ok());
}

TEST(StatesForNoRank, AreThoseOfAJobThatIsKeptWithoutRanks) {
  ServeWorld world(WithLease());
  SmallTrainer trainer(&world, MakeSpec({}));
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(7);
  ASSERT_EQ(trainer.Step({.seed = 1}).error, 0U);
  SaveRequest ranks = Ask(&world, &trainer);
  const States expected = Take(&ranks);
  world.AnswerSave(ranks.connection, {});
  for (const auto& rank : trainer.ranks()) world.Lose(*rank);
  world.Settle();
  world.TakeAllReplies();

  ASSERT_TRUE(AskFor(&world, std::to_string(world.tables().jobs.front()->id)));
  std::vector<SaveRequest> saves = world.TakeSaves();
  ASSERT_EQ(saves.size(), 1U);
  // The lease ends meanwhile: memory goes when the states have left.
  world.clock().Advance(2 * kLeaseNs);
  world.Settle();
  ASSERT_EQ(world.tables().jobs.size(), 1U);
  EXPECT_TRUE(Take(&saves.front()) == expected);
  world.AnswerSave(kNoRank, {});
  world.Settle();
  EXPECT_TRUE(world.tables().jobs.empty());
}

TEST(StatesForNoRank, OthersLearnNothingAndRootMayHaveAll) {
  ServeWorld world;
  SmallTrainer trainer(&world, MakeSpec({}));
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(7);
  const auto refused = [&](const std::string& job, uint32_t uid) {
    world.Post(AskStates{kNoRank, uid, job, Memory()});
    world.Settle();
    const auto reply = world.TakeReply<Refused>();
    return reply ? reply->why.id() : Status().id();
  };
  EXPECT_EQ(refused("no-such-job", 1000), ErrorId::kAdminNotFound);
  EXPECT_EQ(refused(trainer.spec().name, 1001), ErrorId::kAdminNotFound);
  EXPECT_TRUE(world.TakeSaves().empty());
  EXPECT_TRUE(AskFor(&world, trainer.spec().name, 0));
}

TEST(StatesForNoRank, WithoutTheProcessTheyHoldNobody) {
  ServeWorld world;
  SmallTrainer trainer(&world, MakeSpec({}));
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(7);
  ASSERT_TRUE(AskFor(&world, trainer.spec().name));
  std::vector<SaveRequest> saves = world.TakeSaves();
  ASSERT_EQ(saves.size(), 1U);
  // It had come to read, and is killed.
  shm::HeadOf(saves.front().stream->memory->data())->here.store(1);
  world.Post(ConnectionLost{kNoRank, "killed by the test"});
  world.Settle();
  saves.front().stream->opened = [] {};
  const SteadyClock clock;
  const std::atomic<bool> stop{false};
  const int64_t begin = clock.NowNs();
  const Status ended = WriteStream(*saves.front().stream, clock, stop, 100 * kNsPerSecond);
  EXPECT_EQ(ended.id(), ErrorId::kSaveFailed);
  EXPECT_LT(clock.NowNs() - begin, 50 * kNsPerSecond);
  world.AnswerSave(kNoRank, Status(ErrorId::kSaveFailed, "gone"));
  world.Settle();
  ASSERT_EQ(trainer.Step({.seed = 1}).error, 0U);
}

}  // namespace states_for_no_rank_test
}  // namespace tidepool::memserver
