// The first pieces of an update are read before its step is sealed: each piece is read once, the
// bits stay the same, and the staging goes back whenever the step ends otherwise, waits, or another
// job lacks it.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "memserver/control/whole_order.h"
#include "tests/fakes/small_trainer.h"

namespace tidepool::memserver {
namespace ahead_test {

using Weights = std::vector<std::vector<float>>;

constexpr uint32_t kElements = 512;
// That may be taken ahead in one directory.
constexpr uint32_t kSpared = StateTier::kStagingSlots / 2;

shm::JobSpec Spec(const std::string& name = "gpt", uint32_t chunks = 4, uint32_t loss_scaling = 0) {
  return MakeSpec({.name = name,
                   .dtype = DType::kBF16,
                   .chunks = chunks,
                   .chunk_elements = kElements,
                   .loss_scaling = loss_scaling});
}

WorldOptions OnNvme(uint32_t chunks = 4) {
  WorldOptions options = WithStatesOnNvme(Spec("gpt", chunks), 2);
  options.pool_bytes = 32 * kMiB;
  options.loop.times.lease_ns = kLeaseNs;
  options.tier.late_ns = 20 * kNsPerMs;
  options.tier.lost_ns = 200 * kNsPerMs;
  return options;
}

// A job in a world, with its gradients in as often as a test likes.
class Ahead {
 public:
  explicit Ahead(ServeWorld* world, const shm::JobSpec& spec = Spec())
      : world_(world), trainer_(world, spec) {
    EXPECT_TRUE(trainer_.JoinAll());
    trainer_.PutWeights(7);
    world->AwaitWeights(spec.name);
    world->Settle();
  }
  SmallTrainer& trainer() { return trainer_; }
  // Every gradient of the open step; bytes that were read meanwhile.
  uint64_t Submit(uint64_t seed) {
    const uint64_t before = world_->tier().transfers().bytes_read();
    trainer_.Submit({.learning_rate = 0.05F, .seed = seed});
    world_->Settle();
    return world_->tier().transfers().bytes_read() - before;
  }
  // The other half of a step. Its bytes.
  uint64_t End() {
    const uint64_t before = world_->tier().transfers().bytes_read();
    const shm::Completion end = trainer_.EndStep({.learning_rate = 0.05F});
    EXPECT_EQ(end.error, 0u);
    trainer_.set_version(end.version);
    world_->Settle();
    return world_->tier().transfers().bytes_read() - before;
  }
  uint32_t Taken() const { return StateTier::kStagingSlots - world_->tier().staging_free(); }

 private:
  ServeWorld* const world_;
  SmallTrainer trainer_;
};

uint64_t PieceBytes() {
  return nvme::kPieceHeaderBytes + shm::SpilledPieceBytes(Spec(), 0, kElements);
}

Weights OnHost(const shm::JobSpec& spec, const std::vector<uint64_t>& seeds) {
  ServeWorld host({.pool_bytes = 32 * kMiB});
  SmallTrainer trainer(&host, spec);
  EXPECT_TRUE(trainer.JoinAll());
  trainer.PutWeights(7);
  for (const uint64_t seed : seeds)
    EXPECT_EQ(trainer.Step({.learning_rate = 0.05F, .seed = seed}).error, 0u);
  return trainer.FetchAll();
}

// Whether all that a step reads is ahead, or a part of it, or its order changes in between.
TEST(ReadAhead, EachPieceIsReadOnceAndTheBitsAreThoseOfTheHost) {
  for (const uint32_t chunks : {2u, 4u, 60u}) {
    const shm::JobSpec spec = Spec("gpt", chunks);
    ServeWorld world(OnNvme(chunks));
    Ahead job(&world, spec);
    const uint32_t ahead = std::min(chunks, kSpared);
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      EXPECT_EQ(job.Submit(seed), ahead * PieceBytes()) << chunks;
      EXPECT_EQ(job.Taken(), ahead);
      EXPECT_EQ(job.End(), (chunks - ahead) * PieceBytes()) << chunks;
      EXPECT_EQ(job.Taken(), 0u);
    }
    EXPECT_EQ(job.trainer().FetchAll(), OnHost(spec, {1, 2, 3}));
  }
}

TEST(ReadAhead, AnOrderThatChangesLaterChangesNoBit) {
  constexpr uint32_t kChunks = 60;
  ServeWorld world(OnNvme(kChunks));
  Ahead job(&world, Spec("gpt", kChunks));
  std::vector<ChunkId> order;
  for (ChunkId id = kChunks; id > 0; --id) order.push_back(id - 1);
  job.Submit(1);
  world.Post(DeclareSchedule{job.trainer().rank(0).connection(), WholeOrder(order, kChunks)});
  job.End();
  job.Submit(2);
  job.End();
  EXPECT_EQ(job.Taken(), 0u);
  EXPECT_EQ(job.trainer().FetchAll(), OnHost(Spec("gpt", kChunks), {1, 2}));
}

TEST(ReadAhead, AStepThatIsGivenUpOrSkippedGivesTheStagingBack) {
  for (const uint32_t loss_scaling : {0u, 1u}) {
    const shm::JobSpec spec = Spec("gpt", 4, loss_scaling);
    ServeWorld world(OnNvme());
    Ahead job(&world, spec);
    job.trainer().Submit({.seed = 1, .poisoned = true});
    world.Settle();
    EXPECT_EQ(job.Taken(), 4u);
    const shm::Completion end = job.trainer().EndStep({.learning_rate = 0.05F});
    world.Settle();
    EXPECT_EQ(job.Taken(), 0u);
    job.trainer().set_version(end.version);
    job.Submit(2 - loss_scaling);
    job.End();
    EXPECT_EQ(job.Taken(), 0u);
    if (loss_scaling == 0) {
      EXPECT_EQ(job.trainer().FetchAll(), OnHost(spec, {2}));
    }
  }
}

TEST(ReadAhead, AJobThatIsSuspendedOrLosesARankGivesItBack) {
  ServeWorld world(OnNvme());
  Ahead job(&world);
  job.Submit(1);
  EXPECT_EQ(job.Taken(), 4u);
  ASSERT_TRUE(world.Command(SuspendJob{"gpt", true}).ok());
  world.Settle();
  EXPECT_EQ(job.Taken(), 0u);
  ASSERT_TRUE(world.Command(SuspendJob{"gpt", false}).ok());
  world.Settle();
  EXPECT_EQ(job.Taken(), 4u) << "and takes it again";
  world.Lose(job.trainer().rank(0));
  world.Settle();
  EXPECT_EQ(job.Taken(), 0u);
}

// A job in the middle of its backward pass holds nothing up, however long it stays there.
TEST(ReadAhead, AnotherJobThatLacksStagingGetsIt) {
  constexpr uint32_t kChunks = 60;
  ServeWorld world(OnNvme(kChunks));
  Ahead waits(&world, Spec("waits", kChunks)), works(&world, Spec("works", kChunks));
  waits.Submit(1);
  EXPECT_EQ(waits.Taken(), kSpared);
  works.trainer().Submit({.learning_rate = 0.05F, .seed = 1});
  const uint64_t counter = works.trainer().rank(0).EndStep(0, 0.05F);
  uint32_t least = kSpared;
  for (int turn = 0; turn < 10'000 && world.loop().Turn(); ++turn) {
    for (const auto& job : world.tables().jobs) {
      if (job->spec().name == "waits") least = std::min(least, job->spills.pieces_in_staging());
    }
  }
  EXPECT_EQ(world.Await(&works.trainer().rank(0), counter).version, 1u);
  EXPECT_EQ(least, 0u) << "it was given back";
  world.Settle();
  works.trainer().set_version(1);
  EXPECT_EQ(works.trainer().FetchAll(), OnHost(Spec("works", kChunks), {1}));
  waits.End();
  EXPECT_EQ(waits.trainer().FetchAll(), OnHost(Spec("waits", kChunks), {1}));
}

TEST(ReadAhead, WhatCannotBeReadAheadIsReadAgainWhenItIsDue) {
  ServeWorld world(OnNvme());
  Ahead job(&world);
  world.disk().Arm(nvme::DiskFault::kReadError, 1);
  EXPECT_EQ(job.Submit(1), 0u);
  EXPECT_EQ(job.Taken(), 0u);
  world.disk().Arm(nvme::DiskFault::kReadError, 0);
  EXPECT_EQ(job.End(), 4 * PieceBytes());
  world.disk().Arm(nvme::DiskFault::kFlipInAnswer, 1);
  job.Submit(2);
  world.disk().Arm(nvme::DiskFault::kFlipInAnswer, 0);
  EXPECT_EQ(job.End(), 4 * PieceBytes()) << "each was found damaged, and read again";
  EXPECT_EQ(job.trainer().FetchAll(), OnHost(Spec(), {1, 2}));
}

// Nobody waits for it longer than for any other read, and the job goes on without it.
TEST(ReadAhead, AReadThatIsNeverAnsweredCostsItsStagingAndNotTheJob) {
  ServeWorld world(OnNvme());
  Ahead job(&world);
  world.disk().HangNext(nvme::IoKind::kRead);
  job.trainer().Submit({.learning_rate = 0.05F, .seed = 1});
  for (const int64_t end = world.clock().NowNs() + 300 * kNsPerMs; world.clock().NowNs() < end;) {
    if (!world.loop().Turn()) world.clock().Advance(kNsPerMs);
  }
  job.trainer().set_version(job.trainer().EndStep({.learning_rate = 0.05F}).version);
  EXPECT_EQ(job.trainer().FetchAll(), OnHost(Spec(), {1}));
  EXPECT_EQ(job.Taken(), 1u) << "the system may still write into it";
  world.disk().Wake();
  world.Settle();
  EXPECT_EQ(job.Taken(), 0u);
}

TEST(ReadAhead, AKillInBetweenChangesNoBit) {
  for (uint32_t turns = 0; turns < 12; ++turns) {
    ServeWorld world(OnNvme());
    world.disk().Pace(2);
    Ahead job(&world);
    for (uint64_t seed = 1; seed <= 2; ++seed) {
      job.trainer().Submit({.learning_rate = 0.05F, .seed = seed});
      for (uint32_t i = 0; i < turns; ++i) world.loop().Turn();
      world.Restart();
      ASSERT_TRUE(world.Resume(&job.trainer().rank(0), Spec()));
      job.End();
    }
    EXPECT_EQ(job.trainer().FetchAll(), OnHost(Spec(), {1, 2})) << turns;
    EXPECT_EQ(job.Taken(), 0u);
  }
}

}  // namespace ahead_test
}  // namespace tidepool::memserver
