// A job without ranks whose states go to NVMe because others need their room: the newcomer gets in,
// the first goes on with the same bits, whenever the server is killed, whatever the drive does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/point.h"
#include "memserver/jobs/snapshot_builder.h"
#include "tests/fakes/small_trainer.h"

namespace tidepool::memserver {
namespace demotion_test {

using ::testing::HasSubstr;
using Weights = std::vector<std::vector<float>>;

struct Shape {
  DType dtype = DType::kBF16;
  uint32_t world = 1;
  uint32_t micro_batches = 1;
  OptimizerRule rule = OptimizerRule::kAdamW;
  uint64_t chunk_elements = 4096;
  uint32_t chunks = 4;
  StateForm states = StateForm::kF32;
};

shm::JobSpec SpecOf(const Shape& shape, const std::string& name = "gpt") {
  shm::JobSpec spec = MakeSpec(
      {.name = name,
       .world = shape.world,
       .dtype = shape.dtype,
       .chunks = shape.chunks,
       .chunk_elements = shape.chunk_elements * shape.world,
       .micro_batches = shape.micro_batches,
       .max_grad_norm = 2,
       .rcache_bytes = RoundUp(shape.chunk_elements * shape.world * sizeof(float), 64 * kKiB)});
  spec.optimizer.rule = shape.rule;
  spec.optimizer.states = shape.states;
  spec.optimizer.momentum = 0.9;
  return spec;
}

uint64_t HostBytes(const shm::JobSpec& spec, ChunkId first_spilled = shm::kNoSpill) {
  return shm::HostStateBytesOf(spec, first_spilled).total();
}

// Places that the first job leaves are too short for a plane of the second one.
uint64_t Scraps(const shm::JobSpec& spec) {
  return RoundUp(shm::StateBytesOf(spec).records, kPageBytes) +
         RoundUp(spec.chunks[0].elements * sizeof(float), kPageBytes);
}

// The pool has room for the second job when the first is on NVMe, and not before.
WorldOptions RoomForOne(const shm::JobSpec& spec, uint32_t directories = 1) {
  WorldOptions options;
  options.pool_bytes = HostBytes(spec) + HostBytes(spec, 0) + Scraps(spec);
  options.nvme_directories = directories;
  options.nvme_bytes = 2 * shm::NvmeBytesOf(spec, 0);
  options.loop.times.lease_ns = 3600 * kNsPerSecond;
  // So that it does not simply spill.
  options.loop.quotas = {{JobAccount("second"), {.nvme_limit = 0}}};
  return options;
}

void ExpectSums(const ServeWorld& world) {
  uint64_t pool = 0, nvme = 0;
  for (const auto& job : world.tables().jobs) {
    pool += job->states->pool_bytes();
    nvme += job->states->nvme_total();
  }
  auto& tables = const_cast<ServeWorld&>(world);
  ASSERT_EQ(pool + tables.pool().free_bytes(), tables.pool().total_bytes());
  ASSERT_EQ(nvme, tables.tier().used_bytes());
}

class Pair {
 public:
  Pair(const Shape& shape, const WorldOptions& options)
      : world(options), first(&world, SpecOf(shape)), second(&world, SpecOf(shape, "second")) {}

  // The first trains, and its ranks are killed.
  void Detach(uint32_t steps) {
    ASSERT_TRUE(first.JoinAll());
    first.PutWeights(7);
    for (uint32_t i = 0; i < steps; ++i) Step();
    LoseFirst();
  }
  void Step() { ASSERT_EQ(first.Step({.learning_rate = 0.05F, .seed = ++seed}).error, 0u); }
  void LoseFirst() {
    for (const auto& rank : first.ranks()) world.Lose(*rank);
    world.Settle();
  }
  // Asks for a seat; the turns are the caller's.
  ConnectionId Ask(const std::string& name = "second", uint32_t uid = 1000) {
    shm::JobSpec spec = second.spec();
    spec.name = name;
    return world.Reserve(spec, 0, uid);
  }
  bool Granted() {
    world.Settle();
    ExpectSums(world);
    return world.TakeReply<ReserveGranted>().has_value();
  }
  Status Refusal() {
    world.Settle();
    ExpectSums(world);
    const auto refused = world.TakeReply<Refused>();
    return refused ? refused->why : Status();
  }
  // The first comes back and takes `steps` more.
  Weights GoOn(uint32_t steps) {
    EXPECT_TRUE(first.JoinAll());
    for (uint32_t i = 0; i < steps; ++i) Step();
    Weights weights = first.FetchAll();
    first.LeaveAll();
    world.Settle();
    return weights;
  }
  const Job* job(const std::string& name = "gpt") const { return world.tables().FindJob(name); }
  // Until `count` turns have passed in which something was done, or nothing is left to do.
  void Turns(uint32_t count) {
    for (uint32_t idle = 0; count > 0 && idle < 50; --count) {
      idle = world.loop().Turn() ? 0 : idle + 1;
      ExpectSums(world);
    }
  }

  ServeWorld world;
  SmallTrainer first, second;
  uint64_t seed = 0;
};

Weights OnHost(const Shape& shape, uint32_t steps) {
  WorldOptions options;
  options.pool_bytes = 64 * kMiB;
  Pair run(shape, options);
  EXPECT_TRUE(run.first.JoinAll());
  run.first.PutWeights(7);
  for (uint32_t i = 0; i < steps; ++i) run.Step();
  return run.first.FetchAll();
}

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
  ASSERT_TRUE(run.world.tables().demotion.active());
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
  ASSERT_TRUE(run.world.tables().demotion.active());
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
  ASSERT_TRUE(run.world.tables().demotion.active());
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
    ASSERT_LT(run.world.tables().demotion.pieces_written(), run.world.tables().demotion.pieces());
    run.world.disk().Arm(fault, 1);  // of the states alone: the directory itself stays sound
    for (int ms = 0; ms < 10000 && run.world.tables().demotion.why().ok(); ++ms) {
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

// --- kills ---

struct Killed {};

// At the `hits`-th time that a server passes the point, it is dead. False: it never did.
bool KillAt(Pair* run, const std::string& point, uint32_t hits) {
  SetPointHook([&](const char* passed) {
    if (point == passed && --hits == 0) throw Killed();
  });
  bool died = false;
  try {
    run->Ask();
    run->world.Settle();
  } catch (const Killed&) {
    died = true;
  }
  SetPointHook(nullptr);
  run->world.Restart();
  EXPECT_TRUE(run->world.recovered().ok()) << run->world.recovered().Line();
  return died;
}

class DemotionKills : public ::testing::TestWithParam<Shape> {};

TEST_P(DemotionKills, AtEveryPointLeaveTheStatesInOnePlace) {
  const Weights expected = OnHost(GetParam(), 4);
  for (const char* point :
       {"server.demotion_begun", "server.demotion_staged", "server.demotion_written",
        "server.demotion_noted", "server.demotion_committed", "server.demotion_ended",
        "server.job_reserved"}) {
    for (uint32_t hits = 1; hits <= (std::string(point) == "server.demotion_staged" ? 3 : 1);
         hits += 2) {
      Pair run(GetParam(), RoomForOne(SpecOf(GetParam()), 2));
      run.Detach(2);
      const bool died = KillAt(&run, point, hits);
      EXPECT_TRUE(died || hits > 1) << point;
      ExpectSums(run.world);
      const bool moved = run.job()->states->demoted() > 0;
      EXPECT_EQ(run.world.tier().used_bytes(), moved ? shm::NvmeBytesOf(SpecOf(GetParam()), 0) : 0)
          << point;
      EXPECT_EQ(run.GoOn(2), expected) << point;
    }
  }
}

TEST_P(DemotionKills, BetweenAnyTwoTurnsLeaveTheStatesInOnePlace) {
  const Weights expected = OnHost(GetParam(), 4);
#ifdef TIDEPOOL_SANITIZED
  constexpr uint32_t kStride = 11;
#else
  constexpr uint32_t kStride = 1;
#endif
  // So many elements take their time.
  const uint32_t stride = GetParam().chunk_elements > 100'000 ? 4 * kStride : kStride;
  bool moved = false;
  for (uint32_t turns = 1; !moved; turns += stride) {
    ASSERT_LT(turns, 400u);
    Pair run(GetParam(), RoomForOne(SpecOf(GetParam()), 2));
    run.world.disk().Pace(2);
    run.Detach(2);
    run.Ask();
    run.Turns(turns);
    moved = run.job()->states->demoted() > 0;
    run.world.Restart();
    ExpectSums(run.world);
    ASSERT_EQ(run.job()->states->demoted() > 0, moved);
    ASSERT_EQ(run.GoOn(2), expected) << turns;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, DemotionKills,
                         ::testing::Values(Shape{}, Shape{.dtype = DType::kF32, .world = 2},
                                           Shape{.states = StateForm::kSplit8},
                                           Shape{.chunk_elements = 270'336, .chunks = 1}));

// An old note of a move that did not come about says nothing about the next one, to another place.
TEST(Demotion, AMoveThatWasCutOffIsMadeAgain) {
  const Shape shape;
  Pair run(shape, RoomForOne(SpecOf(shape), 2));
  run.Detach(2);
  ASSERT_TRUE(KillAt(&run, "server.demotion_noted", 1));
  ASSERT_EQ(run.job()->states->demoted(), 0u);
  run.Ask();
  ASSERT_TRUE(run.Granted());
  run.world.Restart();
  EXPECT_EQ(run.job()->states->demoted(), 4u);
  EXPECT_EQ(run.GoOn(2), OnHost(shape, 4));
}

TEST(Demotion, ANoteThatDoesNotFitItsCheckGivesTheJobUp) {
  const Shape shape;
  for (uint32_t bit = 0; bit < 64; bit += 7) {
    Pair run(shape, RoomForOne(SpecOf(shape)));
    run.Detach(1);
    run.Ask();
    ASSERT_TRUE(run.Granted());
    run.job()->states->record().demoted.fetch_xor(uint64_t{1} << bit);
    run.world.Restart();
    EXPECT_EQ(run.job(), nullptr) << bit;
    EXPECT_EQ(run.world.pool().free_bytes(), run.world.pool().total_bytes());
    EXPECT_EQ(run.world.tier().used_bytes(), 0u);
  }
}

TEST(Demotion, OfAnotherServerIsFoundOnTheSameDirectoriesOnly) {
  const Shape shape;
  Pair run(shape, RoomForOne(SpecOf(shape), 2));
  run.Detach(2);
  run.Ask();
  ASSERT_TRUE(run.Granted());
  for (const auto given : {ServeWorld::Given::kNone, ServeWorld::Given::kReversed}) {
    run.world.GiveDisks(given);
    run.world.Restart();
    EXPECT_EQ(run.world.recovered().id(), ErrorId::kNvmeDirectoryMissing)
        << run.world.recovered().Line();
  }
  run.world.GiveDisks(ServeWorld::Given::kAll);
  run.world.Restart();
  ASSERT_TRUE(run.world.recovered().ok()) << run.world.recovered().Line();
  EXPECT_EQ(run.GoOn(1), OnHost(shape, 3));
}

}  // namespace demotion_test
}  // namespace tidepool::memserver
