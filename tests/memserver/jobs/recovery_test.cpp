// What a server trusts of the memory that another one has left: damage is found, and whoever is not
// who he was is turned away.
#include "memserver/jobs/job_recovery.h"

#include <fcntl.h>

#include <cstring>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include "base/point.h"
#include "tests/fakes/small_trainer.h"

namespace tidepool::memserver {
namespace recovery_test {

// A job of two ranks, whole at version 2.
class Recovery : public ::testing::Test {
 protected:
  Recovery() : world_(WithLease()), trainer_(&world_, MakeSpec({.world = 2})) {
    EXPECT_TRUE(trainer_.JoinAll());
    trainer_.PutWeights(1);
    trainer_.Step({.seed = 1});
    trainer_.Step({.seed = 2});
    world_.Settle();
  }
  JobStates& states() { return *world_.tables().jobs.front()->states; }
  // Whether the next server finds the job.
  bool IsKept() {
    world_.Restart();
    return !world_.tables().jobs.empty();
  }
  ErrorId Refusal() {
    const auto refused = world_.TakeReply<Refused>();
    return refused ? refused->why.id() : ErrorId::kNone;
  }

  ServeWorld world_;
  SmallTrainer trainer_;
};

TEST_F(Recovery, WhatIsSoundIsKept) {
  EXPECT_TRUE(IsKept());
}

TEST_F(Recovery, AJobRecordThatDoesNotFitItsCheckGivesTheJobUp) {
  states().record().parameter_count ^= 1;
  EXPECT_FALSE(IsKept());
}

TEST_F(Recovery, AStepRecordThatDoesNotFitItsCheckGivesTheJobUp) {
  states().record().steps[0].learning_rate *= 2;
  EXPECT_FALSE(IsKept());
}

TEST_F(Recovery, ASealedVersionWithoutItsStepRecordGivesTheJobUp) {
  states().record().sealed_version.store(3);
  EXPECT_FALSE(IsKept());
}

TEST_F(Recovery, AChunkStampThatDoesNotFitItsCheckGivesTheJobUp) {
  // One version back: the check is still that of the present one.
  states().chunk(1).record->stamp -= uint64_t{1} << 24;
  EXPECT_FALSE(IsKept());
}

TEST_F(Recovery, AnIndexSlotThatDoesNotFitItsCheckIsCountedAndNotRead) {
  auto mapped = shm::Segment::Map(UniqueFd(fcntl(world_.index().fd(), F_DUPFD_CLOEXEC, 0)),
                                  kIndexBytes, shm::PeerAccess::kReadWrite);
  ASSERT_TRUE(mapped.ok()) << mapped.status().Format();
  const std::span<std::byte> bytes((*mapped)->data(), kIndexBytes);
  ASSERT_EQ(ReadIndex(bytes)->jobs.size(), 1U);
  bytes[4096 + sizeof(uint64_t)] ^= std::byte{1};  // in the first slot, behind its nonce
  auto contents = ReadIndex(bytes);
  ASSERT_TRUE(contents.ok());
  EXPECT_EQ(contents->damaged_slots, 1U);
  EXPECT_TRUE(contents->jobs.empty());
}

TEST_F(Recovery, AnotherIncarnationOfARankIsNotTakenForIt) {
  ASSERT_TRUE(IsKept());
  FakeRank& rank = trainer_.rank(0);
  const uint64_t nonce = rank.nonce();
  rank.SetNames(nonce + 1, rank.job_nonce());
  EXPECT_FALSE(world_.Resume(&rank, trainer_.spec()));
  EXPECT_EQ(Refusal(), ErrorId::kPeerLost);
  rank.SetNames(nonce, rank.job_nonce());
  EXPECT_TRUE(world_.Resume(&rank, trainer_.spec()));
}

TEST_F(Recovery, TheDeathOfAnAwaitedRankIsToldToThoseWhoAreBack) {
  ASSERT_TRUE(IsKept());
  ASSERT_TRUE(world_.Resume(&trainer_.rank(0), trainer_.spec()));
  world_.Post(AwaitedRankLost{world_.tables().jobs.front()->id, 1, trainer_.rank(1).nonce()});
  world_.Settle();
  const auto gone = world_.TakeReply<PeerGone>();
  ASSERT_TRUE(gone.has_value());
  EXPECT_EQ(gone->rank, 1U);
}

TEST_F(Recovery, NumbersOfFormerJobsAreNotUsedTwice) {
  const JobId former = world_.tables().jobs.front()->id;
  const uint64_t nonce = world_.tables().jobs.front()->nonce;
  trainer_.LeaveAll();
  world_.Settle();
  ASSERT_FALSE(IsKept());
  ASSERT_NE(world_.Join(MakeSpec({.name = "next"}), 0), nullptr);
  EXPECT_GT(world_.tables().jobs.front()->id, former);
  EXPECT_NE(world_.tables().jobs.front()->nonce, nonce);
}

struct Killed {};

// An undo area may still hold a tile of a job that is gone, under the numbers that a later job in
// the same place has too.
TEST(RecoveryOfATile, IsNotFromTheJobThatHadThisPlaceBefore) {
  constexpr size_t kAreasBytes = 2 * sizeof(optim::UndoArea);  // of one worker
  WorldOptions options = WithLease();
  options.inline_workers = 2;
  options.tunings = {{.each_tile = true}};
  ServeWorld world(options);
  std::byte* const areas = world.pool().own_records().data();
  {
    SmallTrainer former(&world, MakeSpec({.name = "former", .chunks = 1, .chunk_elements = 128}));
    ASSERT_TRUE(former.JoinAll());
    former.PutWeights(7);
    former.Step({.seed = 7});
    former.LeaveAll();
  }
  const std::vector<std::byte> left(areas, areas + kAreasBytes);
  SmallTrainer trainer(&world, MakeSpec({.name = "later", .chunks = 1, .chunk_elements = 128}));
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(1);
  SetPointHook([](const char* name) {
    if (std::string_view(name) == "optim.tile_written") throw Killed();
  });
  EXPECT_THROW(trainer.Step({.seed = 1}), Killed);
  SetPointHook({});
  // As if the second worker had begun this update, and the first one done the former job's.
  std::memcpy(areas + kAreasBytes, areas, kAreasBytes);
  std::memcpy(areas, left.data(), kAreasBytes);
  world.Restart();
  ASSERT_EQ(world.tables().jobs.size(), 1U);
  ASSERT_TRUE(world.Resume(&trainer.rank(0), trainer.spec()));
  trainer.set_version(1);
  trainer.model().Step(0.01F, 1);
  EXPECT_EQ(trainer.Compare(1e-5), "");
}

}  // namespace recovery_test
}  // namespace tidepool::memserver
