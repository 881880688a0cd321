// Checking states on NVMe while training goes on: damage is named, nothing else is, and no job ends
// of it.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/fakes/small_trainer.h"

namespace tidepool::memserver {
namespace scrub_test {

constexpr uint32_t kChunks = 3;

shm::JobSpec Spec() {
  return MakeSpec(
      {.name = "gpt", .dtype = DType::kBF16, .chunks = kChunks, .chunk_elements = 4096});
}

class ScrubTest : public ::testing::Test {
 protected:
  void Start() {
    ASSERT_TRUE(trainer_.JoinAll());
    trainer_.PutWeights(7);
    Train(2);
    world_.Settle();
  }
  void Train(uint32_t steps) {
    for (uint32_t i = 0; i < steps; ++i)
      ASSERT_EQ(trainer_.Step({.learning_rate = 0.05F, .seed = ++seed_}).error, 0u);
  }
  const JobStates& states() { return *world_.tables().jobs[0]->states; }
  ScrubRow Row() { return world_.tables().scrub.Row(world_.clock().NowNs()); }
  // What a scrub of everything finds now.
  ScrubRow Checked() {
    EXPECT_TRUE(world_.Scrub().ok());
    world_.Settle();
    EXPECT_EQ(Row().state, ScrubState::kDone);
    EXPECT_EQ(world_.tier().staging_free(), StateTier::kStagingSlots);
    return Row();
  }
  // Where the states of the chunk lie in their directory's data file: those of its epoch, or of the
  // one before.
  uint64_t PlaceOf(ChunkId id, uint64_t age) {
    const SpillPlace& place = states().chunk(id).spill;
    return place.offset + (states().EpochOf(states().chunk(id)) - age) % 2 * place.slot_bytes;
  }
  void Flip(ChunkId id, uint64_t age, uint64_t at) {
    world_.disk().bytes(3 * states().chunk(id).spill.directory)[PlaceOf(id, age) + at] ^=
        std::byte{4};
  }

  ServeWorld world_{WithStatesOnNvme(Spec(), 1, 2)};
  SmallTrainer trainer_{&world_, Spec()};
  uint64_t seed_ = 0;
};

TEST_F(ScrubTest, ReadsEveryPieceOnceWhileNothingElseGoesOn) {
  Start();
  const uint64_t before = world_.tier().transfers().bytes_read();
  const ScrubRow row = Checked();
  EXPECT_EQ(row.pieces, kChunks);
  EXPECT_EQ(row.pieces_checked, kChunks);
  EXPECT_EQ(row.damaged + row.repetitions, 0u);
  EXPECT_EQ(row.bytes_checked, shm::NvmeBytesOf(Spec(), 0) / 2)
      << "of the two slots the one that counts";
  EXPECT_EQ(world_.tier().transfers().bytes_read() - before, row.bytes_checked);
}

TEST_F(ScrubTest, NamesADamagedPieceAndTheJobGoesOn) {
  Start();
  Flip(1, 0, 5000);
  Flip(2, 1, 5000);  // the slot of the epoch before: nobody needs it
  const ScrubRow row = Checked();
  EXPECT_EQ(row.pieces_checked, kChunks);
  ASSERT_EQ(row.damaged, 1u);
  EXPECT_EQ(row.damage[0].job, 1u);
  EXPECT_EQ(row.damage[0].name, "gpt");
  EXPECT_EQ(row.damage[0].chunk, 1u);
  EXPECT_EQ(row.damage[0].piece, 0u);
  EXPECT_EQ(row.damage[0].offset, PlaceOf(1, 0));
  EXPECT_EQ(row.damage[0].directory,
            world_.tier().directory(states().chunk(1).spill.directory).path);
  EXPECT_NE(row.damage[0].what.find("CRC"), std::string::npos) << row.damage[0].what;
  EXPECT_FALSE(world_.TakeReply<SessionOver>().has_value());
  Flip(1, 0, 5000);
  Train(2);
  EXPECT_EQ(Checked().damaged, 0u) << "a new scrub begins anew";
}

TEST_F(ScrubTest, EveryBitAtRestIsLookedAt) {
  Start();
  const uint64_t bytes = states().chunk(0).spill.slot_bytes;
  for (uint64_t at = 0; at < bytes; at += bytes / 40 + 1) {
    Flip(0, 0, at);
    EXPECT_EQ(Checked().damaged, 1u) << at;
    Flip(0, 0, at);
  }
}

TEST_F(ScrubTest, WhatFlipsOnTheWayIsReadAgain) {
  Start();
  world_.disk().Arm(nvme::DiskFault::kFlipInAnswer, 4);
  uint64_t repetitions = 0;
  for (int i = 0; i < 10; ++i) repetitions += Checked().repetitions;
  EXPECT_GT(repetitions, 2u);
}

TEST_F(ScrubTest, WhatCannotBeReadIsNamedToo) {
  Start();
  world_.disk().Arm(nvme::DiskFault::kReadError, 1);
  const ScrubRow row = Checked();
  EXPECT_EQ(row.damaged, kChunks);
  EXPECT_NE(row.damage[0].what.find("cannot be read"), std::string::npos) << row.damage[0].what;
  world_.disk().Arm(nvme::DiskFault::kReadError, 0);
  Train(1);
}

// Slots are left and overwritten while they are read: that is no damage, and the bits of the
// training stay what they are.
TEST_F(ScrubTest, AccusesNobodyWhileTrainingGoesOn) {
  Start();
  world_.disk().Pace(2);
  world_.disk().Arm(nvme::DiskFault::kStall, 5);
  uint64_t scrubs = 0;
  for (int step = 0; step < 100; ++step) {
    if (Row().state != ScrubState::kRunning) {
      ASSERT_EQ(Row().pieces_checked, Row().pieces);
      ASSERT_TRUE(world_.Scrub().ok());
      ++scrubs;
    }
    Train(1);
    ASSERT_EQ(Row().damaged + Row().repetitions, 0u) << "in step " << step;
  }
  EXPECT_GT(scrubs, 10u);
  ServeWorld host;
  SmallTrainer other(&host, Spec());
  ASSERT_TRUE(other.JoinAll());
  other.PutWeights(7);
  for (uint64_t seed = 1; seed <= seed_; ++seed) other.Step({.learning_rate = 0.05F, .seed = seed});
  EXPECT_EQ(trainer_.FetchAll(), other.FetchAll());
}

TEST_F(ScrubTest, AJobThatEndsMeanwhileIsLeftOut) {
  Start();
  world_.disk().Pace(3);
  for (int turns = 0; turns < 6; ++turns) {
    ASSERT_TRUE(world_.Scrub().ok());
    for (int i = 0; i < turns; ++i) world_.loop().Turn();
    trainer_.LeaveAll();
    world_.Settle();
    EXPECT_TRUE(world_.tables().jobs.empty());
    EXPECT_EQ(Row().state, ScrubState::kDone);
    EXPECT_EQ(world_.tier().staging_free(), StateTier::kStagingSlots);
    EXPECT_EQ(world_.tier().used_bytes(), 0u);
    SmallTrainer next(&world_, Spec());
    ASSERT_TRUE(next.JoinAll());
    next.PutWeights(1);
    ASSERT_EQ(next.Step({.seed = 1}).error, 0u);
    std::swap(next.ranks(), trainer_.ranks());
  }
}

// Also one that is suspended while a piece of it is read.
TEST_F(ScrubTest, ASuspendedJobIsCheckedLikeAnyOther) {
  Start();
  ASSERT_TRUE(world_.Command(SuspendJob{"gpt", true}).ok());
  EXPECT_EQ(Checked().pieces_checked, kChunks);
  ASSERT_TRUE(world_.Command(SuspendJob{"gpt", false}).ok());
  world_.disk().HangNext(nvme::IoKind::kRead);
  ASSERT_TRUE(world_.Scrub().ok());
  for (int i = 0; i < 10; ++i) world_.loop().Turn();
  ASSERT_TRUE(world_.Command(SuspendJob{"gpt", true}).ok());
  world_.disk().Wake();
  world_.Settle();
  EXPECT_EQ(Row().pieces_checked, kChunks);
  EXPECT_EQ(Row().state, ScrubState::kDone);
  EXPECT_EQ(world_.tier().staging_free(), StateTier::kStagingSlots);
}

TEST_F(ScrubTest, AServerThatIsReplacedStopsCheckingAndTheNextOneBeginsAnew) {
  Start();
  world_.disk().Pace(3);
  ASSERT_TRUE(world_.Scrub().ok());
  world_.loop().Turn();
  world_.Post(StopServing{.hand_over = true});
  for (int i = 0; i < 100 && !world_.loop().stopped(); ++i) world_.loop().Turn();
  ASSERT_TRUE(world_.loop().stopped());
  EXPECT_FALSE(world_.tables().scrub.moving());
  world_.Restart();
  ASSERT_TRUE(world_.Resume(trainer_.ranks()[0].get(), Spec()));
  EXPECT_EQ(Row().state, ScrubState::kNever);
  EXPECT_EQ(Checked().pieces_checked, kChunks);
}

TEST(Scrub, WithoutNvmeThereIsNothingToCheck) {
  ServeWorld world;
  EXPECT_EQ(world.Scrub().id(), ErrorId::kAdminNotFound);
}

}  // namespace scrub_test
}  // namespace tidepool::memserver
