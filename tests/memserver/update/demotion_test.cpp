// A job without ranks whose states go to NVMe because others need their room: the newcomer gets in,
// the first goes on with the same bits, whatever the drive does. Kills: demotion_kills_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "memserver/jobs/rows/snapshot_builder.h"
#include "tests/memserver/update/demotion_fixture.h"

namespace tidepool::memserver {
namespace demotion_test {

using demotion_fixture::ExpectSums;
using demotion_fixture::HostBytes;
using demotion_fixture::OnHost;
using demotion_fixture::Pair;
using demotion_fixture::RoomForOne;
using demotion_fixture::Scraps;
using demotion_fixture::Shape;
using demotion_fixture::SpecOf;
using ::testing::HasSubstr;

class DemotionBits : public ::testing::TestWithParam<Shape> {};

TEST_P(DemotionBits, AreThoseOfTheHostAndTheOtherJobHasTheRoom) {
  const Shape& shape = GetParam();
  const Weights expected = OnHost(shape, 5);
  for (uint32_t directories = 1; directories <= 2; ++directories) {
    Pair run(shape, RoomForOne(SpecOf(shape), directories));
    run.Detach(3);
    ASSERT_EQ(run.job()->states->nvme_total(), 0u);
    run.Ask();
    ASSERT_TRUE(run.Granted());
    EXPECT_EQ(run.job()->states->pool_bytes(), HostBytes(run.first.spec(), 0));
    EXPECT_EQ(run.job()->states->nvme_total(), shm::NvmeBytesOf(run.first.spec(), 0));
    EXPECT_EQ(run.job("second")->states->pool_bytes(), HostBytes(run.first.spec()));
    EXPECT_EQ(run.world.pool().free_bytes(), Scraps(run.first.spec()));
    EXPECT_EQ(run.world.tables().counters.demotions, 1u);
    EXPECT_EQ(run.world.tier().staging_free(), StateTier::kStagingSlots);
    EXPECT_EQ(run.GoOn(2), expected);
    EXPECT_EQ(run.world.tier().used_bytes(), 0u) << "it gave both places back";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, DemotionBits,
    ::testing::Values(Shape{}, Shape{DType::kF32}, Shape{DType::kF16, 3, 2},
                      Shape{DType::kF32, 2, 3}, Shape{DType::kBF16, 1, 1, OptimizerRule::kSgd},
                      Shape{DType::kBF16, 1, 1, OptimizerRule::kAdamW, 270'336, 1}));
INSTANTIATE_TEST_SUITE_P(Forms, DemotionBits,
                         ::testing::Values(Shape{.states = StateForm::kSplit},
                                           Shape{.world = 2, .states = StateForm::kSplitBf16},
                                           Shape{.micro_batches = 2, .states = StateForm::kSplit8},
                                           Shape{.chunk_elements = shm::kPieceElements + 208,
                                                 .chunks = 1,
                                                 .states = StateForm::kSplit8}));

// A job of which a part spilled when it was admitted has two ranges afterwards.
TEST(Demotion, OfAJobThatSpillsOutlivesTheServer) {
  const Shape shape;
  const shm::JobSpec spec = SpecOf(shape);
  WorldOptions options = RoomForOne(spec, 2);
  options.loop.quotas.push_back({JobAccount("gpt"), {.limit = HostBytes(spec, 2)}});
  options.pool_bytes = HostBytes(spec, 2) + HostBytes(spec) - 3 * Scraps(spec);
  Pair run(shape, options);
  run.Detach(2);
  run.Ask();
  ASSERT_TRUE(run.Granted());
  ASSERT_EQ(run.job()->states->demoted(), 2u);
  ASSERT_EQ(run.job()->states->nvme_total(), shm::NvmeBytesOf(spec, 0));
  run.world.Restart();
  ASSERT_TRUE(run.world.recovered().ok()) << run.world.recovered().Line();
  ASSERT_EQ(run.job()->states->demoted(), 2u);
  ExpectSums(run.world);
  EXPECT_EQ(run.GoOn(2), OnHost(shape, 4));
  EXPECT_EQ(run.world.tier().used_bytes(), 0u);
}

TEST(Demotion, IsForNobodyWhoWouldSpillInstead) {
  const Shape shape;
  WorldOptions options = RoomForOne(SpecOf(shape));
  options.loop.quotas.clear();
  Pair run(shape, options);
  run.Detach(1);
  run.Ask();
  ASSERT_TRUE(run.Granted());
  EXPECT_EQ(run.job()->states->nvme_total(), 0u);
  EXPECT_GT(run.job("second")->states->nvme_total(), 0u);
}

TEST(Demotion, IsOfNobodyWhereStatesAreToBeOnTheHost) {
  const Shape shape;
  WorldOptions options = RoomForOne(SpecOf(shape));
  options.loop.live.states_on = StatesOn::kHost;
  Pair run(shape, options);
  run.Detach(1);
  run.Ask();
  const Status why = run.Refusal();
  EXPECT_EQ(why.id(), ErrorId::kPoolFull);
  EXPECT_THAT(why.why(), ::testing::Not(HasSubstr("NVMe")));
}

TEST(Demotion, OfAnAttachedJobIsRefusedByNameAndItNeverNotices) {
  const Shape shape;
  Pair run(shape, RoomForOne(SpecOf(shape)));
  ASSERT_TRUE(run.first.JoinAll());
  run.first.PutWeights(7);
  run.Step();
  run.Ask();
  const Status why = run.Refusal();
  EXPECT_EQ(why.id(), ErrorId::kPoolFull);
  EXPECT_THAT(why.why(), HasSubstr("moving states to NVMe makes no room: gpt has ranks"));
  EXPECT_EQ(run.world.tier().transfers().bytes_written(), 0u);
}

TEST(Demotion, ASecondUserCannotTakeWhatIsGuaranteedNorAHigherPriority) {
  const Shape shape;
  const shm::JobSpec spec = SpecOf(shape);
  WorldOptions options = RoomForOne(spec);
  options.loop.quotas.push_back({JobAccount("gpt"), {.guarantee = HostBytes(spec)}});
  Pair run(shape, options);
  run.Detach(1);
  for (int i = 0; i < 3; ++i) {
    run.Ask("second", 2000);
    EXPECT_THAT(run.Refusal().why(), HasSubstr("gpt is within the guarantee of job:gpt"));
  }
  ASSERT_TRUE(run.world.SetQuota("gpt", {.guarantee = 0, .priority = Priority::kHigh}).ok());
  run.Ask("second", 2000);
  EXPECT_THAT(run.Refusal().why(), HasSubstr("gpt has a higher priority"));
  EXPECT_EQ(run.job()->states->nvme_total(), 0u);
  ASSERT_TRUE(run.world.SetQuota("gpt", {.priority = Priority::kNormal}).ok());
  run.Ask("second", 2000);
  EXPECT_TRUE(run.Granted()) << "what is borrowed is given back";
}

// The limit of the account has no room, the pool has.
TEST(Demotion, MakesRoomBelowTheLimitOfTheOwnAccount) {
  const Shape shape;
  const shm::JobSpec spec = SpecOf(shape);
  WorldOptions options = RoomForOne(spec);
  options.pool_bytes *= 4;
  options.loop.quotas = {
      {UserAccount(1000), {.limit = HostBytes(spec) + shm::LeastHostBytesOf(spec) - kPageBytes}}};
  Pair run(shape, options);
  run.Detach(1);
  run.Ask();
  ASSERT_TRUE(run.Granted());
  EXPECT_EQ(run.job()->states->demoted(), 4u);
  EXPECT_EQ(run.job("second")->states->chunks_on_host(), 3u) << "its last chunk alone spills";
}

TEST(Demotion, OfASuspendedJobWithoutRanksGoesOn) {
  const Shape shape;
  Pair run(shape, RoomForOne(SpecOf(shape)));
  run.Detach(2);
  ASSERT_TRUE(run.world.Command(SuspendJob{"gpt", true}).ok());
  run.Ask();
  ASSERT_TRUE(run.Granted());
  ASSERT_TRUE(run.world.Command(SuspendJob{"gpt", false}).ok());
  EXPECT_EQ(run.GoOn(1), OnHost(shape, 3));
}

TEST(Demotion, MayBeAskedForByAnAdminWhenNobodyNeedsTheRoom) {
  Pair run({}, RoomForOne(SpecOf({}), 2));
  run.Detach(2);
  ASSERT_TRUE(run.first.JoinAll());
  EXPECT_EQ(run.world.Command(EvictJob{"gpt"}).why(), "gpt has ranks");
  run.LoseFirst();
  run.world.disk().Pace(2);
  ASSERT_TRUE(run.world.Command(EvictJob{"gpt"}).ok());
  run.Turns(400);
  EXPECT_EQ(run.job()->states->demoted(), 4u);
  EXPECT_THAT(run.world.Command(EvictJob{"gpt"}).why(),
              HasSubstr("has its states on NVMe already"));
  EXPECT_EQ(run.GoOn(2), OnHost({}, 4));
}

TEST(Demotion, AskedForByAnAdminEndsWhenARankComesBack) {
  Pair run({}, RoomForOne(SpecOf({}), 2));
  run.Detach(2);
  run.world.disk().Pace(2);
  ASSERT_TRUE(run.world.Command(EvictJob{"gpt"}).ok());
  run.Turns(2);
  EXPECT_EQ(run.GoOn(2), OnHost({}, 4));
  EXPECT_EQ(run.world.tables().counters.demotions_dropped, 1u);
}

TEST(Demotion, TakesSeveralJobsOneAfterTheOther) {
  const Shape shape;
  const shm::JobSpec spec = SpecOf(shape);
  WorldOptions options = RoomForOne(spec);
  options.pool_bytes = 2 * HostBytes(spec);
  Pair run(shape, options);
  run.Detach(2);
  SmallTrainer third(&run.world, SpecOf(shape, "third"));
  ASSERT_TRUE(third.JoinAll());
  third.PutWeights(5);
  run.world.Settle();
  run.world.Lose(third.rank(0));
  run.world.Settle();
  run.Ask();
  ASSERT_TRUE(run.Granted());
  EXPECT_EQ(run.world.tables().counters.demotions, 2u) << "one alone gives three quarters";
  EXPECT_EQ(run.GoOn(1), OnHost(shape, 3));
}

// Neither hears of a queue, as neither waits for jobs to end.
TEST(Demotion, WhoComesMeanwhileIsAnsweredInTurn) {
  const Shape shape;
  const shm::JobSpec spec = SpecOf(shape);
  WorldOptions options = RoomForOne(spec);
  options.loop.quotas.push_back({JobAccount("third"), {.nvme_limit = 0}});
  Pair run(shape, options);
  run.Detach(1);
  run.Ask();
  run.Turns(2);
  ASSERT_TRUE(run.world.jobs().demotion().active());
  run.Ask("third");
  run.Turns(1);
  EXPECT_FALSE(run.world.TakeReply<Refused>().has_value())
      << "it may find room when the other was served";
  ASSERT_TRUE(run.Granted());
  EXPECT_EQ(run.Refusal().id(), ErrorId::kPoolFull);
  EXPECT_FALSE(run.world.TakeReply<Queued>().has_value());
}

TEST(Demotion, IsDroppedWhenARankComesBackAndTheNewcomerIsRefused) {
  const Shape shape;
  const Weights expected = OnHost(shape, 4);
  for (uint32_t turns = 1; turns < 12; ++turns) {
    Pair run(shape, RoomForOne(SpecOf(shape)));
    run.world.disk().Pace(3);
    run.Detach(2);
    run.Ask();
    run.Turns(turns);
    const bool done = run.job()->states->demoted() > 0;
    ASSERT_EQ(run.world.TakeReply<ReserveGranted>().has_value(), done);
    EXPECT_EQ(run.GoOn(2), expected) << turns;
    ExpectSums(run.world);
    if (done) continue;
    EXPECT_EQ(run.world.tables().counters.demotions, 0u);
    EXPECT_EQ(run.world.tier().used_bytes(), 0u);
    EXPECT_EQ(run.world.tier().staging_free(), StateTier::kStagingSlots);
  }
}

TEST(Demotion, IsDroppedWhenNobodyWaitsForItAnyMore) {
  const Shape shape;
  Pair run(shape, RoomForOne(SpecOf(shape)));
  run.world.disk().Pace(3);
  run.Detach(2);
  const ConnectionId asks = run.Ask();
  run.Turns(2);
  ASSERT_TRUE(run.world.jobs().demotion().active());
  run.world.Post(ConnectionLost{asks, "gone"});
  run.world.Settle();
  ExpectSums(run.world);
  EXPECT_EQ(run.world.tables().counters.demotions_dropped, 1u);
  EXPECT_EQ(run.job()->states->nvme_total(), 0u);
  EXPECT_EQ(run.world.tier().used_bytes(), 0u);
  EXPECT_EQ(run.GoOn(1), OnHost(shape, 3));
}

TEST(Demotion, OfAJobThatIsReleasedMeanwhileEndsWithIt) {
  const Shape shape;
  Pair run(shape, RoomForOne(SpecOf(shape)));
  run.world.disk().Pace(3);
  run.Detach(1);
  run.Ask();
  run.Turns(3);
  ASSERT_TRUE(run.world.jobs().demotion().active());
  ASSERT_TRUE(run.world.Command(ReleaseJob{"gpt", false}).ok());
  ASSERT_TRUE(run.Granted());
  EXPECT_EQ(run.job(), nullptr);
  EXPECT_EQ(run.world.tier().used_bytes(), 0u);
}

TEST(Demotion, WaitsInTheQueueLikeAnybodyWhereTheRankMayWait) {
  const Shape shape;
  Pair run(shape, RoomForOne(SpecOf(shape)));
  ASSERT_TRUE(run.first.JoinAll());
  run.first.PutWeights(7);
  run.Step();
  run.world.MayWait(true);
  run.Ask();
  run.world.Settle();
  ASSERT_TRUE(run.world.TakeReply<Queued>().has_value());
  run.LoseFirst();
  ASSERT_TRUE(run.Granted()) << "as soon as the first has no ranks";
  EXPECT_EQ(run.job()->states->demoted(), 4u);
}

// --- the drive ---

TEST(DemotionFaults, AnErrorLeavesTheStatesWhereTheyAreAndTheNewcomerHearsWhy) {
  const Shape shape{.chunks = 40};
  for (const auto fault : {nvme::DiskFault::kWriteError, nvme::DiskFault::kNoSpace}) {
    Pair run(shape, RoomForOne(SpecOf(shape)));
    run.Detach(2);
    run.Ask();
    const nvme::SlotStore& store = run.world.tier().store(0);
    for (int i = 0; i < 1000 && (store.changes() == 0 || store.dirty()); ++i) run.Turns(1);
    ASSERT_LT(run.world.jobs().demotion().pieces_written(), run.world.jobs().demotion().pieces());
    run.world.disk().Arm(fault, 1);  // of the states alone: the directory itself stays sound
    for (int ms = 0; ms < 10000 && run.world.jobs().demotion().why().ok(); ++ms) {
      run.world.clock().Advance(kNsPerMs);
      run.Turns(1);
    }
    run.world.disk().Arm(fault, 0);
    const Status why = run.Refusal();
    EXPECT_EQ(why.id(), ErrorId::kPoolFull);
    EXPECT_THAT(why.why(), HasSubstr("gpt could not be moved"));
    EXPECT_EQ(run.job()->states->nvme_total(), 0u);
    EXPECT_EQ(run.world.tables().counters.demotions_failed, 1u);
    EXPECT_EQ(run.world.tier().staging_free(), StateTier::kStagingSlots);
    run.Ask();
    EXPECT_THAT(run.Refusal().why(), HasSubstr("could not be moved")) << "not again at once";
    run.world.clock().Advance(kDemotionPauseNs);
    run.Ask();
    EXPECT_TRUE(run.Granted());
    EXPECT_EQ(run.GoOn(2), OnHost(shape, 4));
  }
}

TEST(DemotionFaults, ADirectoryWhoseFlushFailsTakesNothing) {
  const Shape shape;
  Pair run(shape, RoomForOne(SpecOf(shape)));
  run.Detach(2);
  run.world.disk().Arm(nvme::DiskFault::kSyncError, 1);
  run.Ask();
  EXPECT_THAT(run.Refusal().why(), HasSubstr("gpt could not be moved"));
  EXPECT_EQ(run.job()->states->demoted(), 0u);
  run.world.disk().Arm(nvme::DiskFault::kSyncError, 0);
  run.world.clock().Advance(kDemotionPauseNs);
  run.Ask();
  EXPECT_THAT(run.Refusal().why(), HasSubstr("gpt finds no room on NVMe"));
  EXPECT_EQ(run.GoOn(2), OnHost(shape, 4));
}

TEST(DemotionFaults, ADriveThatDoesNotAnswerIsNotWaitedFor) {
  const Shape shape;
  WorldOptions options = RoomForOne(SpecOf(shape));
  options.tier.late_ns = 20 * kNsPerMs;
  options.tier.lost_ns = 200 * kNsPerMs;
  Pair run(shape, options);
  run.Detach(2);
  run.world.disk().HangNext(nvme::IoKind::kWrite);
  const auto pass = [&run](int ms) {
    for (int i = 0; i < ms; ++i) {
      run.world.clock().Advance(kNsPerMs);
      for (int turn = 0; turn < 20 && run.world.loop().Turn(); ++turn) continue;
    }
  };
  run.Ask();
  pass(30);
  EXPECT_FALSE(run.world.TakeReply<Refused>().has_value()) << "its ranges are not free yet";
  pass(300);
  const auto refused = run.world.TakeReply<Refused>();
  ASSERT_TRUE(refused.has_value());
  EXPECT_THAT(refused->why.why(), HasSubstr("does not answer"));
  run.world.disk().Wake();
  pass(5);
  EXPECT_EQ(run.world.tier().used_bytes(), 0u);
  EXPECT_EQ(run.world.tier().staging_free(), StateTier::kStagingSlots);
  EXPECT_EQ(run.GoOn(1), OnHost(shape, 3));
}

}  // namespace demotion_test
}  // namespace tidepool::memserver
