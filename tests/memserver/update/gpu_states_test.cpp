// Jobs whose states lie on GPUs have the same bits as on the host, whatever lies there and whenever
// the server is killed; and what ends with a GPU. Host devices stand in for the GPUs.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/point.h"
#include "device/host/host_device.h"
#include "memserver/admin/reports/report.h"
#include "memserver/traffic/gpu_states.h"
#include "shm/spec/gpu_states.h"
#include "shm/spec/state_footprint.h"
#include "tests/fakes/small_job.h"
#include "tests/memserver/paced_device.h"

namespace tidepool::memserver {
namespace gpu_states_test {

struct Shape {
  DType dtype = DType::kBF16;
  uint32_t world = 1;
  uint32_t micro_batches = 1;
  uint32_t on_gpu = 2;
  uint64_t chunk_elements = 192;  // per rank
  uint32_t chunks = 4;
  OptimizerRule rule = OptimizerRule::kAdamW;
  uint32_t f32_chunks = 0;
};

shm::JobSpec SpecOf(const Shape& shape, uint32_t loss_scaling = 0) {
  shm::JobSpec spec = SmallJob({.dtype = shape.dtype,
                                .world = shape.world,
                                .micro_batches = shape.micro_batches,
                                .chunk_elements = shape.chunk_elements,
                                .chunks = shape.chunks,
                                .loss_scaling = loss_scaling,
                                .f32_chunks = shape.f32_chunks});
  spec.optimizer.rule = shape.rule;
  spec.states_on_gpu = shape.on_gpu;
  return spec;
}

shm::JobSpec OnTheHost(shm::JobSpec spec) {
  spec.states_on_gpu = 0;
  return spec;
}

void Train(SmallTrainer* trainer, uint64_t from, uint64_t to) {
  EXPECT_TRUE(TrainSteps(trainer, from, to));
}

// Weights after `steps` steps; each third one is skipped where the job scales its loss.
Weights Trained(ServeWorld* world, const shm::JobSpec& spec, uint64_t steps) {
  SmallTrainer trainer(world, spec);
  EXPECT_TRUE(trainer.JoinAll());
  trainer.PutWeights(7);
  Train(&trainer, 0, steps);
  Weights weights = trainer.FetchAll();
  trainer.LeaveAll();
  EXPECT_EQ(world->tables().jobs.size(), 0U);
  EXPECT_EQ(world->shares_kept(), 0U) << "the keeper has let go";
  EXPECT_EQ(world->pool().free_bytes(), world->pool().total_bytes());
  return weights;
}

Weights OnHost(const shm::JobSpec& spec, uint64_t steps) {
  ServeWorld world({.pool_bytes = 32 * kMiB});
  return Trained(&world, OnTheHost(spec), steps);
}

class GpuBits : public ::testing::TestWithParam<Shape> {};

TEST_P(GpuBits, AreThoseOfTheHostAlsoWhenStepsAreSkipped) {
  WorldOptions options = WithLease();
  options.pool_bytes = 32 * kMiB;
  for (const uint32_t loss_scaling : {0U, 1U}) {
    const shm::JobSpec spec = SpecOf(GetParam(), loss_scaling);
    const uint64_t steps = GetParam().chunk_elements > 100'000 ? 2 : 6;
    GpuWorld world(options);
    EXPECT_TRUE(Same(Trained(&*world, spec, steps), OnHost(spec, steps))) << loss_scaling;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, GpuBits,
    ::testing::Values(Shape{DType::kF32}, Shape{DType::kF32, 2, 3}, Shape{DType::kBF16},
                      Shape{DType::kBF16, 2, 2, 3}, Shape{DType::kF16, 2, 1, 4},
                      Shape{.rule = OptimizerRule::kAdam}, Shape{.on_gpu = 3, .f32_chunks = 1},
                      Shape{.world = 2, .micro_batches = 2, .on_gpu = 2, .f32_chunks = 3},
                      Shape{.on_gpu = 1, .chunk_elements = shm::kPieceElements + 208, .chunks = 2},
                      Shape{.dtype = DType::kF32,
                            .on_gpu = 2,
                            .chunk_elements = shm::kPieceElements + 208,
                            .chunks = 2}));

// In each step another parameter of four is left alone, and the groups change their numbers.
Weights TrainedInParts(ServeWorld* world, const shm::JobSpec& spec) {
  SmallTrainer trainer(world, spec);
  EXPECT_TRUE(trainer.JoinAll());
  trainer.PutWeights(7);
  for (uint64_t step = 0; step < 6; ++step) {
    StepPlan plan{.seed = step, .untouched = {}, .groups = {}};
    for (ParameterId id = step % 4; id < spec.parameters.size(); id += 4) plan.untouched.insert(id);
    if (step % 2 == 1) plan.groups[1] = NumbersOf(spec.optimizer, 0.02F, 0.1F);
    EXPECT_EQ(trainer.Step(plan).error, 0U);
  }
  Weights weights = trainer.FetchAll();
  trainer.LeaveAll();
  return weights;
}

TEST_P(GpuBits, AreThoseOfTheHostWhereStepsLeaveParametersAlone) {
  WorldOptions options = WithLease();
  options.pool_bytes = 32 * kMiB;
  const shm::JobSpec spec = SpecOf(GetParam());
  GpuWorld world(options);
  ServeWorld host({.pool_bytes = 32 * kMiB});
  const Weights on_gpu = TrainedInParts(&*world, spec);
  EXPECT_TRUE(Same(on_gpu, TrainedInParts(&host, OnTheHost(spec))));
  EXPECT_FALSE(Same(on_gpu, OnHost(spec, 6)));
}

// More than one unit: the 16-bit copies of a chunk are made in several rounds, and its update is in
// flight twice.
TEST(GpuStates, AChunkOfSeveralUnitsHasTheBitsOfTheHost) {
  const shm::JobSpec spec =
      SpecOf({.on_gpu = 1, .chunk_elements = shm::kGpuUnitElements + 4096, .chunks = 1});
  WorldOptions options = WithLease();
  options.pool_bytes = 96 * kMiB;
  options.loop.rcache_limit = 96 * kMiB;
  Weights expected;
  {
    ServeWorld host(options);
    expected = Trained(&host, OnTheHost(spec), 1);
  }
  GpuWorld world(options);
  EXPECT_TRUE(Same(Trained(&*world, spec, 1), expected));
}

TEST(GpuStates, UnitsOfARecordedJobAreSpansOfTheRanksGpu) {
  const shm::JobSpec spec = SpecOf({.world = 2});
  GpuWorld world;
  SmallTrainer trainer(&*world, spec);
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(7);
  Train(&trainer, 0, 1);
  ASSERT_TRUE(world->Command(RecordSpans{spec.name, true}).ok());
  Train(&trainer, 1, 2);
  trainer.FetchAll();
  world->Settle();

  std::map<ChunkId, uint32_t> updates;  // and the rank of each
  for (const Span& span : world->tables().jobs.front()->spans->Since(0)) {
    if (span.kind != SpanKind::kGpuUpdate) continue;
    EXPECT_LE(span.begin_ns, span.end_ns);
    updates[span.chunk] = span.by;
  }
  EXPECT_EQ(updates, (std::map<ChunkId, uint32_t>{{0, 0}, {1, 1}}));
}

// A unit has a limited number of parameters, wherever they begin, and gaps between them stay as
// they are.
TEST(GpuStates, AChunkOfManySmallParametersHasTheBitsOfTheHost) {
  constexpr uint64_t kElements = 5;
  shm::JobSpec spec = SpecOf({.on_gpu = 1});
  std::vector<shm::ParameterSpec> parameters;
  for (const shm::ParameterSpec& whole : spec.parameters) {
    if (whole.chunk != 0) {
      parameters.push_back(whole);
      continue;
    }
    for (uint64_t begin = 0; begin + kElements <= whole.element_count; begin += kElements + 1) {
      shm::ParameterSpec part = whole;
      part.name += "." + std::to_string(begin);
      part.dims = {kElements};
      part.element_begin = whole.element_begin + begin;
      part.element_count = kElements;
      parameters.push_back(part);
    }
  }
  ASSERT_GT(parameters.size(), spec.parameters.size() + GpuQueue::kGpuRunsAUnit);
  spec.parameters = std::move(parameters);
  const Weights expected = OnHost(spec, 3);
  GpuWorld world;
  EXPECT_TRUE(Same(Trained(&*world, spec, 3), expected));
}

TEST(GpuStates, BehindThemChunksLieOnTheHostAndOnNvmeWithTheSameBits) {
  const shm::JobSpec spec = SpecOf({.on_gpu = 1});
  WorldOptions options = WithStatesOnNvme(spec);
  options.loop.times.lease_ns = kLeaseNs;
  const Weights expected = OnHost(spec, 4);
  GpuWorld spilled(options);
  EXPECT_TRUE(Same(Trained(&*spilled, spec, 4), expected));
  // One of four chunks lies on a GPU; one, and the parts of all that stay, fit the pool; two spill.
  options.loop.live.states_on = StatesOn::kAuto;
  options.pool_bytes = shm::HostStateBytesOf(spec, 2).total();
  GpuWorld between(options);
  SmallTrainer trainer(&*between, spec);
  ASSERT_TRUE(trainer.JoinAll());
  const JobStates& states = *between->tables().jobs.front()->states;
  EXPECT_TRUE(states.chunk(0).on_gpu && !states.chunk(0).spilled);
  EXPECT_FALSE(states.chunk(1).states_off_host());
  EXPECT_TRUE(states.chunk(2).spilled && states.chunk(3).spilled);
  EXPECT_EQ(between->pool().free_bytes(), 0U);
  trainer.PutWeights(7);
  Train(&trainer, 0, 4);
  EXPECT_TRUE(Same(trainer.FetchAll(), expected));
}

// --- servers that are killed ---

void ComeBack(ServeWorld* world, SmallTrainer* trainer) {
  world->Restart();
  ASSERT_EQ(world->tables().jobs.size(), 1U) << "the states were found";
  for (const auto& rank : trainer->ranks()) ASSERT_TRUE(world->Resume(rank.get(), trainer->spec()));
}

// Kills the server after so many turns of any kind.
void KillAfter(ServeWorld* world, SmallTrainer* trainer, uint32_t turns) {
  for (uint32_t i = 0; i < turns; ++i) {
    world->PollShares();
    world->loop().Turn();
  }
  ComeBack(world, trainer);
}

class GpuKills : public ::testing::TestWithParam<Shape> {};

TEST_P(GpuKills, InTheMiddleOfStoringAndUpdatingChangeNoBit) {
  const shm::JobSpec spec = SpecOf(GetParam());
  const Weights expected = OnHost(spec, 3);
#ifdef TIDEPOOL_SANITIZED
  constexpr uint32_t kStride = 13;
#else
  constexpr uint32_t kStride = 5;
#endif
  for (uint32_t turns = 0; turns < 40; turns += kStride) {
    GpuWorld world;
    world.Pace(600);  // in the middle of a copy of a plane, and of a kernel
    SmallTrainer trainer(&*world, spec);
    ASSERT_TRUE(trainer.JoinAll());
    trainer.PutWeights(7);
    KillAfter(&*world, &trainer, turns);
    for (uint64_t step = 0; step < 3; ++step) {
      ASSERT_EQ(trainer.Step({.learning_rate = 0.05F, .seed = step + 1}).error, 0U);
      KillAfter(&*world, &trainer, turns);
      if (turns % 3 == 0) KillAfter(&*world, &trainer, turns / 2);
    }
    ASSERT_TRUE(Same(trainer.FetchAll(), expected)) << "killed after " << turns << " turns";
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, GpuKills,
                         ::testing::Values(Shape{DType::kF32, 1, 1, 3}, Shape{DType::kBF16},
                                           Shape{DType::kBF16, 2, 2, 4}));

// A move inside the GPU would cost 24 bytes a parameter twice, and with one stream a unit would
// wait for the copies of the one before.
TEST(GpuStates, AnUpdateMovesNoStateInsideTheGpuAndUnitsTakeTwoStreams) {
  GpuWorld world;
  world.Pace(256);
  const shm::JobSpec spec = SpecOf({.dtype = DType::kBF16, .on_gpu = 4});
  SmallTrainer trainer(&*world, spec);
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(7);
  for (uint64_t step = 0; step < 3; ++step)
    ASSERT_EQ(trainer.Step({.learning_rate = 0.05F, .seed = step + 1}).error, 0U);
  EXPECT_EQ(world.mood(0).bytes_inside, 0U);
  EXPECT_EQ(world.mood(0).computing.size(), shm::kGpuUnitsInFlight);
}

struct Killed {};

// Kills at each point of the way, the first times that it is reached.
TEST(GpuStates, AKillAtAnyPointOfTheWayChangesNoBit) {
  const shm::JobSpec spec = SpecOf({.world = 2, .on_gpu = 3});
  const Weights expected = OnHost(spec, 2);
  for (const std::string point :
       {"server.gpu_share_ready", "server.gpu_share_imported", "server.gpu_unit_begun",
        "server.gpu_unit_passed", "server.gpu_piece_stored", "server.chunk_published"}) {
    uint32_t kills = 0;
    for (const uint32_t nth : {1U, 2U, 3U, 5U, 9U}) {
      GpuWorld world;
      // Then the weights are in before anything is stored.
      world->HoldBackKeeper(point == "server.gpu_piece_stored");
      SmallTrainer trainer(&*world, spec);
      ASSERT_TRUE(trainer.JoinAll());
      uint32_t left = nth;
      const auto turns_until_killed = [&] {
        try {
          world->Settle();
        } catch (const Killed&) {
          ++kills;
          ComeBack(&*world, &trainer);
        }
      };
      SetPointHook([&](const char* name) {
        if (point == name && left > 0 && --left == 0) throw Killed();
      });
      const bool early = point.find("share") != std::string::npos;
      if (early) {
        turns_until_killed();
        if (point == "server.gpu_share_imported") ComeBack(&*world, &trainer);
        turns_until_killed();
      }
      SetPointHook({});
      trainer.PutWeights(7);
      world->HoldBackKeeper(false);
      const auto arm = [&] {
        SetPointHook([&](const char* name) {
          if (point == name && left > 0 && --left == 0) throw Killed();
        });
      };
      for (uint64_t step = 0; step < 2; ++step) {
        arm();
        turns_until_killed();
        SetPointHook({});
        ASSERT_EQ(trainer.Step({.learning_rate = 0.05F, .seed = step + 1}).error, 0U);
      }
      arm();
      turns_until_killed();
      SetPointHook({});
      ASSERT_TRUE(Same(trainer.FetchAll(), expected)) << point << " " << nth;
    }
    EXPECT_GT(kills, 0U) << point;
  }
}

// The job has no weights yet, so nobody waits for it; the keeper lets go of what it was given.
TEST(GpuStates, AServerKilledAsAShareIsMadeLeavesNoMemoryBehind) {
  for (const std::string point : {"server.gpu_share_made", "server.gpu_share_ready"}) {
    GpuWorld world;
    const shm::JobSpec spec = SpecOf({});
    SmallTrainer killed(&*world, spec);
    SetPointHook([&](const char* name) {
      if (point == name) throw Killed();
    });
    EXPECT_THROW((killed.JoinAll(), world->Settle()), Killed);
    SetPointHook({});
    world->Restart();
    for (const auto& job : world->tables().jobs)
      world->Post(AwaitedRankLost{job->id, 0, job->NonceOf(0)});
    world->Settle();
    EXPECT_TRUE(world->tables().jobs.empty());
    EXPECT_EQ(world->shares_kept(), 0U) << point;
    EXPECT_TRUE(Same(Trained(&*world, spec, 2), OnHost(spec, 2)));
  }
}

TEST(GpuStates, MemoryThatTheKeeperLostIsStatesLostByName) {
  GpuWorld world;
  SmallTrainer trainer(&*world, SpecOf({}));
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(7);
  world->Settle();
  world->LoseShares();
  world->Restart();
  EXPECT_TRUE(world->tables().jobs.empty());
  EXPECT_FALSE(world->Resume(&trainer.rank(0), trainer.spec()));
  EXPECT_EQ(world->TakeReply<Refused>()->why.id(), ErrorId::kStatesLost);
  EXPECT_EQ(world->pool().free_bytes(), world->pool().total_bytes());
}

TEST(GpuStates, AGpuThatIsNotThereAfterARestartEndsTheJobAndTheKeeperLetsGo) {
  GpuWorld world;
  SmallTrainer trainer(&*world, SpecOf({}));
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(7);
  world->Settle();
  world->BringFromEach({world.gpu(1)});
  world->Restart();
  ASSERT_EQ(world->tables().jobs.size(), 1U);
  ASSERT_TRUE(world->Resume(&trainer.rank(0), trainer.spec()));
  world->Settle();
  const auto over = world->TakeReply<SessionOver>();
  ASSERT_TRUE(over.has_value());
  EXPECT_EQ(over->why.id(), ErrorId::kStatesLost);
  EXPECT_TRUE(world->tables().jobs.empty());
  EXPECT_EQ(world->shares_kept(), 0U);
}

// --- ranks that go and come, jobs that end ---

TEST(GpuStates, AJobWhoseTrainersWereKilledGoesOnWithOthersFromItsLastStep) {
  const shm::JobSpec spec = SpecOf({.world = 2, .on_gpu = 3});
  const Weights expected = OnHost(spec, 4);
  GpuWorld world;
  SmallTrainer first(&*world, spec);
  ASSERT_TRUE(first.JoinAll());
  first.PutWeights(7);
  Train(&first, 0, 2);
  for (const auto& rank : first.ranks()) world->Lose(*rank);
  world->Settle();
  ASSERT_EQ(world->tables().jobs.size(), 1U);
  EXPECT_EQ(world->shares_kept(), 2U);
  SmallTrainer second(&*world, spec);
  ASSERT_TRUE(second.JoinAll());
  second.set_version(2);
  Train(&second, 2, 4);
  EXPECT_TRUE(Same(second.FetchAll(), expected));
  EXPECT_EQ(world->shares_kept(), 2U) << "no memory was made anew";
}

TEST(GpuStates, AReleasedJobAndOneWhoseLeaseEndsGiveAllOfItBack) {
  for (const bool released : {true, false}) {
    GpuWorld world;
    SmallTrainer trainer(&*world, SpecOf({.world = 2}));
    ASSERT_TRUE(trainer.JoinAll());
    trainer.PutWeights(7);
    Train(&trainer, 0, 1);
    ASSERT_EQ(world->shares_kept(), 2U);
    for (const auto& rank : trainer.ranks()) world->Lose(*rank);
    world->Settle();
    if (released) {
      EXPECT_TRUE(world->Command(ReleaseJob{"job"}).ok());
    } else {
      world->clock().Advance(kLeaseNs);
    }
    world->Settle();
    EXPECT_TRUE(world->tables().jobs.empty());
    EXPECT_EQ(world->shares_kept(), 0U);
    EXPECT_EQ(world->pool().free_bytes(), world->pool().total_bytes());
  }
}

TEST(GpuStates, WhatIsWhereIsCountedExactlyAndReported) {
  const shm::JobSpec spec = SpecOf({.world = 2, .on_gpu = 3});
  GpuWorld world;
  SmallTrainer trainer(&*world, spec);
  ASSERT_TRUE(trainer.JoinAll());
  world->Post(SnapshotWanted{});
  world->Settle();
  const auto ready = world->TakeReply<SnapshotReady>();
  ASSERT_TRUE(ready.has_value());
  const Snapshot& now = *ready->snapshot;
  EXPECT_EQ(now.pool_used, shm::HostStateBytesOf(spec, shm::kNoSpill).total());
  ASSERT_EQ(now.jobs.size(), 1U);
  EXPECT_EQ(now.jobs[0].pool_bytes, now.pool_used);
  EXPECT_EQ(now.jobs[0].gpu_bytes, shm::GpuStateBytes(spec));
  EXPECT_EQ(now.jobs[0].chunks_on_gpu, 3U);
  for (ChunkId id = 0; id < 4; ++id) EXPECT_EQ(now.jobs[0].chunks[id].on_gpu, id < 3) << id;
  ASSERT_EQ(now.gpus.size(), 2U);
  for (Rank rank = 0; rank < 2; ++rank)
    EXPECT_EQ(now.gpus[rank].state_bytes, shm::GpuShareBytes(spec, rank)) << rank;
  EXPECT_NE(TiersReport(now).find(R"({"kind":"gpu","bytes":0,"bytes_used":4194304)"),
            std::string::npos)
      << TiersReport(now);
}

TEST(GpuStates, ASuspendedJobBeginsNothingAndGoesOnAfterwards) {
  const shm::JobSpec spec = SpecOf({});
  const Weights expected = OnHost(spec, 2);
  GpuWorld world;
  SmallTrainer trainer(&*world, spec);
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(7);
  Train(&trainer, 0, 1);
  ASSERT_TRUE(world->Command(SuspendJob{"job"}).ok());
  world->Settle();
  const uint64_t units = world->tables().jobs.front()->gpus.units();
  world->Settle();
  EXPECT_EQ(world->tables().jobs.front()->gpus.units(), units);
  ASSERT_TRUE(world->Command(SuspendJob{"job", false}).ok());
  Train(&trainer, 1, 2);
  EXPECT_TRUE(Same(trainer.FetchAll(), expected));
}

TEST(GpuStates, ASaveReadsTheMasterFromTheGpu) {
  const shm::JobSpec spec = SpecOf({});
  GpuWorld world;
  ServeWorld host;
  SmallTrainer on_gpu(&*world, spec), on_host(&host, OnTheHost(spec));
  for (SmallTrainer* trainer : {&on_gpu, &on_host}) {
    ASSERT_TRUE(trainer->JoinAll());
    trainer->PutWeights(7);
    Train(trainer, 0, 2);
  }
  host.Settle();
  SaveWeights save;
  save.connection = on_gpu.rank(0).connection();
  save.name = "weights";
  save.version = 2;
  world->Post(std::move(save));
  world->Settle();
  std::vector<SaveRequest> saves = world->TakeSaves();
  ASSERT_EQ(saves.size(), 1U);
  const JobStates& states = *host.tables().jobs.front()->states;
  for (size_t i = 0; i < spec.parameters.size(); ++i) {
    const shm::ParameterSpec& parameter = spec.parameters[i];
    const SavedTensor& tensor = saves.front().tensors[i];
    EXPECT_EQ(tensor.read != nullptr, parameter.chunk < spec.states_on_gpu);
    if (tensor.read == nullptr) continue;
    std::vector<float> values(parameter.element_count - 3);
    ASSERT_TRUE(tensor.read(3, values).ok());
    const auto* master =
        reinterpret_cast<const float*>(states.chunk(parameter.chunk).planes.master) +
        parameter.element_begin;
    EXPECT_EQ(std::memcmp(values.data(), master + 3, values.size() * sizeof(float)), 0)
        << parameter.name;
  }
  world->AnswerSave(on_gpu.rank(0).connection(), Status());
  world->Settle();
}

// --- what is refused, and what fails ---

TEST(GpuStates, ARankWithoutAGpuIsRefused) {
  GpuWorld world;
  world->BringFrom(nullptr);
  SmallTrainer trainer(&*world, SpecOf({}));
  EXPECT_FALSE(trainer.JoinAll());
  const auto refused = world->TakeReply<Refused>();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->why.id(), ErrorId::kJobSpecBad);
  EXPECT_NE(refused->why.what().find("they bring none"), std::string::npos) << refused->why.what();
}

// The same for a job that came from the server before as for one whose ranks are there.
TEST(GpuStates, ARankThatComesWithoutItsGpuIsRefusedAndTheJobGoesOn) {
  const shm::JobSpec spec = SpecOf({.world = 2, .on_gpu = 3});
  const Weights expected = OnHost(spec, 2);
  GpuWorld world;
  SmallTrainer trainer(&*world, spec);
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(7);
  Train(&trainer, 0, 1);
  world->Restart();
  world->BringFrom(nullptr);
  EXPECT_FALSE(world->Resume(&trainer.rank(1), spec));
  auto refused = world->TakeReply<Refused>();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->why.id(), ErrorId::kJobMismatch);
  EXPECT_NE(refused->why.what().find("brings no GPU"), std::string::npos) << refused->why.what();
  world->BringFromEach({world.gpu(0), world.gpu(1)});
  for (Rank rank = 0; rank < 2; ++rank) ASSERT_TRUE(world->Resume(&trainer.rank(rank), spec));
  world->Settle();
  Train(&trainer, 1, 2);
  EXPECT_TRUE(Same(trainer.FetchAll(), expected));
}

TEST(GpuStates, AShortageNamesWhatIsAskedAndWhatIsFree) {
  GpuWorld world;
  world.mood(0).no_memory = Status(ErrorId::kDeviceMemoryShort, "the GPU has no room");
  const auto made = MakeGpuStates(world.gpu(0), 4 * kMiB);
  EXPECT_EQ(made.status().id(), ErrorId::kDeviceMemoryShort);
  EXPECT_NE(made.status().what().find("4.00 MiB"), std::string::npos) << made.status().what();
  EXPECT_NE(made.status().what().find("3.00 MiB of its memory are free"), std::string::npos)
      << made.status().what();
}

TEST(GpuStates, AGpuThatFailsEndsTheJobsWhoseStatesLieThereByNameAndNoOthers) {
  GpuWorld world;
  SmallTrainer lost(&*world, SpecOf({.world = 2, .on_gpu = 3}));
  ASSERT_TRUE(lost.JoinAll());
  lost.PutWeights(7);
  Train(&lost, 0, 1);
  world->Settle();
  world->BringFrom(nullptr);
  shm::JobSpec spec = OnTheHost(SpecOf({}));
  spec.name = "other";
  SmallTrainer other(&*world, spec);
  ASSERT_TRUE(other.JoinAll());
  other.PutWeights(7);
  world.mood(1).failure = Status(ErrorId::kCudaFailed, "an illegal address");
  world->Settle();
  for (int rank = 0; rank < 2; ++rank) {
    const auto over = world->TakeReply<SessionOver>();
    ASSERT_TRUE(over.has_value());
    EXPECT_EQ(over->why.id(), ErrorId::kStatesLost);
    EXPECT_EQ(over->why.why(), "an illegal address");
  }
  EXPECT_EQ(world->tables().jobs.size(), 1U);
  EXPECT_EQ(world->shares_kept(), 0U);
  Train(&other, 0, 2);
}

}  // namespace gpu_states_test
}  // namespace tidepool::memserver
