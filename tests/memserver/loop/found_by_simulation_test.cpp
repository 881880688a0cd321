// What the simulation found and was mended, each as the shortest story that shows it: a server dies
// at one point, and the next one goes on.
#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <string_view>

#include <gtest/gtest.h>
#include "base/point.h"
#include "memserver/control/whole_order.h"
#include "tests/fakes/small_trainer.h"

namespace tidepool::memserver {
namespace found_by_simulation_test {

struct Killed {};

// A job of one rank (two where the story needs a peer), with its weights in.
class FoundBySimulation : public ::testing::Test {
 protected:
  void Start(const SpecOptions& spec) {
    trainer_ = std::make_unique<SmallTrainer>(&world_, MakeSpec(spec));
    ASSERT_TRUE(trainer_->JoinAll());
    trainer_->PutWeights(1);
  }
  // The server dies when it passes the point for the `hit`-th time, while `what` goes on.
  static void DieAt(std::string_view point, int hit, const std::function<void()>& what) {
    int hits = 0;
    SetPointHook([&](const char* name) {
      if (name == point && ++hits == hit) throw Killed();
    });
    EXPECT_THROW(what(), Killed) << point << " was not reached";
    SetPointHook({});
  }
  const Job& job() { return *world_.tables().jobs.front(); }
  void LoseAwaited(Rank rank) {
    world_.Post(AwaitedRankLost{job().id, rank, trainer_->rank(rank).nonce()});
    world_.loop().Turn();
  }
  void ExpectModel() { EXPECT_EQ(trainer_->Compare(1e-5), ""); }

  ServeWorld world_{WithLease()};
  std::unique_ptr<SmallTrainer> trainer_;
};

// An addition that recovery had queued was dropped with the attempt of its dead rank. Its progress
// word went on naming an open tile of it, which no addition after it had: the next server that
// found one pending gave the job up, and so did every server after that.
TEST_F(FoundBySimulation, AnAdditionThatIsDroppedAfterARestartHindersNoLaterServer) {
  Start({.chunks = 1, .chunk_elements = 1024, .micro_batches = 2});
  DieAt("optim.tile_written", 2, [this] { trainer_->Step({.seed = 1}); });
  world_.Restart();
  LoseAwaited(0);
  ASSERT_TRUE(trainer_->JoinAll());
  DieAt("server.gradient_staged", 1, [this] { trainer_->Step({.seed = 2}); });
  world_.Restart();
  ASSERT_EQ(world_.tables().jobs.size(), 1U) << "the job is kept";
  LoseAwaited(0);
  ASSERT_TRUE(trainer_->JoinAll());
  EXPECT_EQ(trainer_->Step({.seed = 3}).version, 1U);
  ExpectModel();
}

// The ranks were told of a step that was not finite before the step was forgotten. They began its
// next attempt at another server, which still had the gradients of the former one.
TEST_F(FoundBySimulation, AStepThatIsNotFiniteIsForgottenBeforeItsRanksHearOfIt) {
  Start({.micro_batches = 2});
  DieAt("server.step_answered", 1, [this] { trainer_->Step({.seed = 1, .poisoned = true}); });
  const auto told = trainer_->rank(0).Take();
  ASSERT_TRUE(told.has_value()) << "the answer is in the ring";
  EXPECT_EQ(told->error, static_cast<uint32_t>(ErrorId::kNonFinite));
  world_.Restart();
  ASSERT_TRUE(world_.Resume(&trainer_->rank(0), trainer_->spec()));
  EXPECT_EQ(job().states->intake(0, 0).micro_batches_stored, 0U);
  EXPECT_EQ(trainer_->Step({.seed = 2}).version, 1U);
  ExpectModel();
}

// The server died between the drop of a step that was not finite and its answers. Gradients and
// ends that were sent again counted for the next attempt: it was sealed with gradients of the
// dropped one.
TEST_F(FoundBySimulation, WhatIsSentAgainOfADroppedAttemptCountsForNoOther) {
  Start({.world = 2, .chunks = 1});
  DieAt("server.step_dropped", 1, [this] { trainer_->Step({.seed = 1, .poisoned = true}); });
  world_.Restart();
  const uint32_t again = shm::kResubmitted | shm::FlagsOfAttempt(0);
  for (const auto& rank : trainer_->ranks())
    ASSERT_TRUE(world_.Resume(rank.get(), trainer_->spec()));
  const uint64_t shard = trainer_->spec().ShardElements(0);
  for (const auto& rank : trainer_->ranks()) {
    shm::Request gradient =
        FakeRank::SubmitRequest({.begin = shard * rank->rank(), .count = shard});
    gradient.flags = again;
    EXPECT_EQ(world_.Await(rank.get(), rank->Send(gradient)).error, 0U)
        << "as it would have been answered";
    EXPECT_EQ(job().states->intake(0, rank->rank()).micro_batches_accepted, 0U);
    shm::Request end = FakeRank::EndStepRequestOf(0, 0.01F, 1);
    end.flags = again;
    EXPECT_EQ(world_.Await(rank.get(), rank->Send(end)).error,
              static_cast<uint32_t>(ErrorId::kNonFinite));
  }
  EXPECT_EQ(trainer_->Step({.seed = 2}).version, 1U);
  ExpectModel();
}

// The same death: no missing gradient tells that the end of a rank without chunks is an old one. It
// ended the next attempt.
TEST_F(FoundBySimulation, TheEndOfARankWithoutChunksEndsItsOwnAttemptOnly) {
  shm::JobSpec spec = MakeSpec({.world = 2, .chunks = 1});
  spec.data_groups.push_back({0b01});
  spec.chunks[0].data_group = 1;
  const std::array ranks{world_.Join(spec, 0), world_.Join(spec, 1)};
  FakeRank& member = *ranks[0];
  const uint64_t elements = spec.chunks[0].elements;
  ASSERT_EQ(world_.Await(&member, member.Put(0, 0, elements, 0)).error, 0U);
  const auto end = [](FakeRank* rank, uint32_t flags) {
    shm::Request request = FakeRank::EndStepRequestOf(0, 0.01F, 1);
    request.flags = flags;
    return rank->Send(request);
  };
  const auto submit = [&](float value, uint32_t attempt) {
    std::fill_n(member.At<float>(0), elements, value);
    shm::Request request = FakeRank::SubmitRequest({.count = elements});
    request.flags = shm::FlagsOfAttempt(attempt);
    EXPECT_EQ(world_.Await(&member, member.Send(request)).error, 0U);
  };
  submit(std::numeric_limits<float>::infinity(), 0);
  for (const auto& rank : ranks) end(rank.get(), shm::FlagsOfAttempt(0));
  DieAt("server.step_dropped", 1, [this] { world_.Settle(); });
  world_.Restart();
  for (const auto& rank : ranks) {
    ASSERT_TRUE(world_.Resume(rank.get(), spec));
    const uint64_t sent = end(rank.get(), shm::FlagsOfAttempt(0) | shm::kResubmitted);
    EXPECT_EQ(world_.Await(rank.get(), sent).error, static_cast<uint32_t>(ErrorId::kNonFinite))
        << "rank " << rank->rank();
    EXPECT_FALSE(job().step.HasEnded(rank->rank())) << "rank " << rank->rank();
  }
  submit(1, 1);
  for (const auto& rank : ranks) end(rank.get(), shm::FlagsOfAttempt(1));
  world_.Settle();
  for (const auto& rank : ranks) EXPECT_EQ(rank->Take()->version, 1U);
}

// The order of the updates was the one of the chunks that a dead server had left to do, and stayed
// that for the next step: the other chunks were never updated again.
TEST_F(FoundBySimulation, TheStepAfterAFinishedOneUpdatesEveryChunk) {
  for (const bool declared : {false, true}) {
    world_.StartOver();
    Start({.chunks = 3});
    trainer_->Step({.seed = 1});
    DieAt("server.chunk_published", 1, [this] { world_.Settle(); });
    world_.Restart();
    ASSERT_TRUE(world_.Resume(&trainer_->rank(0), trainer_->spec()));
    if (declared)
      world_.Post(DeclareSchedule{trainer_->rank(0).connection(),
                                  WholeOrder(std::vector<ChunkId>{2, 0, 2}, 3)});
    ExpectModel();
    trainer_->Step({.seed = 2});
    world_.Settle();
    for (const Chunk& chunk : job().states->chunks()) EXPECT_EQ(chunk.version, 2U);
    ExpectModel();
  }
}

// Numbers of jobs were given out again after a restart, and with them the nonces: a rank of a job
// that was gone could come back to another.
TEST_F(FoundBySimulation, NumbersOfJobsThatAreGoneAreNotUsedAgain) {
  Start({.name = "first"});
  const JobId first = job().id;
  const uint64_t nonce = job().nonce;
  trainer_->LeaveAll();
  for (int restart = 0; restart < 2; ++restart) {
    world_.Restart();
    ASSERT_TRUE(world_.tables().jobs.empty());
  }
  EXPECT_FALSE(world_.Resume(&trainer_->rank(0), trainer_->spec())) << "its job is gone";
  Start({.name = "second"});
  EXPECT_GT(job().id, first);
  EXPECT_NE(job().nonce, nonce);
}

// A fetch that was sent again asked for a version that the update had overwritten meanwhile,
// because its rank had ended the step. That is nobody's fault: it ended the rank as one that breaks
// the protocol.
TEST_F(FoundBySimulation, AFetchSentAgainOfAVersionThatIsGoneEndsNobody) {
  Start({});
  trainer_->Step({.seed = 1});
  world_.Settle();
  world_.Restart();
  FakeRank& rank = trainer_->rank(0);
  ASSERT_TRUE(world_.Resume(&rank, trainer_->spec()));
  shm::Request again = FakeRank::FetchRequest(0, 0, 16, 0, 0);
  again.flags = shm::kResubmitted;
  EXPECT_EQ(world_.Await(&rank, rank.Send(again)).error,
            static_cast<uint32_t>(ErrorId::kVersionGone));
  rank.Send(FakeRank::FetchRequest(0, 0, 16, 0, 0));
  world_.Settle();
  EXPECT_EQ(rank.Ended(), ErrorId::kProtocolViolation)
      << "of a fetch that is new it is its rank's fault";
}

// --- ranks that die while others come back ---

class ComingBack : public FoundBySimulation {
 protected:
  void SetUp() override {
    Start({.world = 2});
    world_.Restart();
  }
  // The rank that the answer names as lost, of the oldest such answer for `to`.
  void ExpectToldOfLoss(const FakeRank& to, Rank lost) {
    const auto gone = world_.TakeReply<PeerGone>();
    ASSERT_TRUE(gone.has_value()) << "rank " << to.rank() << " would wait for ever";
    EXPECT_EQ(gone->connection, to.connection());
    EXPECT_EQ(gone->rank, lost);
  }
};

TEST_F(ComingBack, ARankThatWasAwayWhenAPeerWasLostIsToldWhenItIsBack) {
  LoseAwaited(1);
  EXPECT_FALSE(world_.TakeReply<PeerGone>().has_value()) << "nobody is there to be told";
  ASSERT_TRUE(world_.Resume(&trainer_->rank(0), trainer_->spec()));
  ExpectToldOfLoss(trainer_->rank(0), 1);
}

TEST_F(ComingBack, ARankWhosePeerIsLostWhileItComesBackIsTold) {
  const ConnectionId connection = world_.AskToResume(trainer_->rank(0), trainer_->spec());
  world_.loop().Turn();
  const auto granted = world_.TakeReply<ReserveGranted>();
  ASSERT_TRUE(granted && granted->connection == connection);
  LoseAwaited(1);
  world_.TakeReply<PeerGone>();  // which its connection may not take before it is attached
  world_.AttachAgain(*granted, &trainer_->rank(0));
  world_.loop().Turn();
  ExpectToldOfLoss(trainer_->rank(0), 1);
}

TEST_F(ComingBack, ARankThatIsLostWhileItComesBackIsLostToItsPeerAndFreesItsPlace) {
  ASSERT_TRUE(world_.Resume(&trainer_->rank(0), trainer_->spec()));
  const ConnectionId connection = world_.AskToResume(trainer_->rank(1), trainer_->spec());
  world_.loop().Turn();
  ASSERT_TRUE(world_.TakeReply<ReserveGranted>().has_value()) << "its memory is being made";
  world_.Post(ConnectionLost{connection, "killed"});
  world_.loop().Turn();
  ExpectToldOfLoss(trainer_->rank(0), 1);
  world_.Lose(trainer_->rank(0));
  world_.Settle();
  world_.TakeAllReplies();
  ASSERT_TRUE(trainer_->JoinAll()) << "both places are free";
  EXPECT_EQ(trainer_->Step({.seed = 1}).version, 1U);
  ExpectModel();
}

// A lease shorter than a way back counted ranks as lost that were already trying.
TEST(RanksOfTheServerBefore, AreWaitedForHoweverShortTheLease) {
  WorldOptions options;
  options.loop.times.lease_ns = kNsPerMs;
  options.loop.await_ns_min = 5 * kNsPerSecond;
  ServeWorld world(options);
  SmallTrainer trainer(&world, MakeSpec({}));
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(1);
  world.Restart();
  world.clock().Advance(options.loop.await_ns_min - 1);
  world.Settle();
  ASSERT_EQ(world.tables().jobs.size(), 1U);
  EXPECT_TRUE(world.Resume(&trainer.rank(0), trainer.spec()));
  world.Restart();
  world.clock().Advance(options.loop.await_ns_min);
  world.Settle();
  world.clock().Advance(options.loop.times.lease_ns);
  world.Settle();
  EXPECT_TRUE(world.tables().jobs.empty()) << "but not for ever";
}

}  // namespace found_by_simulation_test
}  // namespace tidepool::memserver
