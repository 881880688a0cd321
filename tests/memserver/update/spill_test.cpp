// Jobs whose states lie on NVMe: the same bits as on the host, whatever is spilled, whenever the
// server is killed, whatever the disk does.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/formats/split_float.h"
#include "base/point.h"
#include "base/unique_fd.h"
#include "memserver/residency/placement.h"
#include "memserver/traffic/spill_reader.h"
#include "shm/spec/state_bytes.h"
#include "tests/fakes/small_job.h"

namespace tidepool::memserver {
namespace spill_test {

WorldOptions OnNvme(const shm::JobSpec& spec, uint32_t directories = 1) {
  WorldOptions options = WithStatesOnNvme(spec, 1, directories);
  options.loop.times.lease_ns = 5 * kNsPerSecond;
  return options;
}

struct Shape {
  DType dtype = DType::kBF16;
  uint32_t world = 1;
  uint32_t micro_batches = 1;
  OptimizerRule rule = OptimizerRule::kAdamW;
  uint64_t chunk_elements = 192;
  uint32_t chunks = 4;
  StateForm states = StateForm::kF32;
  uint32_t f32_chunks = 0;
  // More than one piece a chunk: fewer steps show it.
  bool large() const { return chunk_elements > 100'000; }
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
  spec.optimizer.states = shape.states;
  spec.optimizer.momentum = 0.9;
  return spec;
}

// Weights after `steps` steps; each third step is skipped where the job scales its loss.
Weights Trained(ServeWorld* world, const shm::JobSpec& spec, uint32_t steps) {
  SmallTrainer trainer(world, spec);
  EXPECT_TRUE(trainer.JoinAll());
  trainer.PutWeights(7);
  EXPECT_TRUE(TrainSteps(&trainer, 0, steps));
  Weights weights = trainer.FetchAll();
  trainer.LeaveAll();
  world->Settle();
  EXPECT_EQ(world->pool().free_bytes(), world->pool().total_bytes());
  return weights;
}

Weights OnHost(const shm::JobSpec& spec, uint32_t steps) {
  ServeWorld world({.pool_bytes = 32 * kMiB});
  return Trained(&world, spec, steps);
}

class SpillBits : public ::testing::TestWithParam<Shape> {};

TEST_P(SpillBits, AreThoseOfTheHost) {
  const shm::JobSpec spec = SpecOf(GetParam());
  const uint32_t steps = GetParam().large() ? 2 : 6;
  const Weights expected = OnHost(spec, steps);
  for (uint32_t directories = GetParam().large() ? 2 : 1; directories <= 2; ++directories) {
    ServeWorld world(OnNvme(spec, directories));
    EXPECT_TRUE(Same(Trained(&world, spec, steps), expected)) << directories;
    EXPECT_GT(world.tier().transfers().bytes_written(), 0u);
    EXPECT_EQ(world.tier().used_bytes(), 0u) << "the job gave its ranges back";
    EXPECT_EQ(world.tier().staging_free(), StateTier::kStagingSlots);
  }
}

TEST_P(SpillBits, AreThoseOfTheHostAlsoWhenStepsAreSkipped) {
  const shm::JobSpec spec = SpecOf(GetParam(), 1);
  ServeWorld world(OnNvme(spec));
  const uint32_t steps = GetParam().large() ? 3 : 7;
  EXPECT_TRUE(Same(Trained(&world, spec, steps), OnHost(spec, steps)));
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, SpillBits,
    ::testing::Values(Shape{DType::kF32}, Shape{DType::kF32, 2, 3}, Shape{DType::kBF16},
                      Shape{DType::kBF16, 2, 2}, Shape{DType::kF16, 3, 1},
                      Shape{DType::kBF16, 1, 1, OptimizerRule::kSgd},
                      Shape{DType::kF32, 1, 1, OptimizerRule::kAdagrad},
                      Shape{DType::kBF16, 1, 1, OptimizerRule::kAdamW, 270'336, 2},
                      Shape{DType::kF32, 1, 1, OptimizerRule::kAdamW, 270'336, 2}));

INSTANTIATE_TEST_SUITE_P(
    Forms, SpillBits,
    ::testing::Values(Shape{.states = StateForm::kSplit},
                      Shape{.world = 2, .states = StateForm::kSplitBf16},
                      Shape{.micro_batches = 2, .states = StateForm::kSplit8},
                      Shape{.rule = OptimizerRule::kSgd, .states = StateForm::kSplit},
                      Shape{.rule = OptimizerRule::kLion, .states = StateForm::kSplit8}));

INSTANTIATE_TEST_SUITE_P(
    Mixed, SpillBits,
    ::testing::Values(Shape{.f32_chunks = 1},
                      Shape{.world = 2, .micro_batches = 2, .f32_chunks = 3},
                      Shape{.dtype = DType::kF16, .world = 3, .f32_chunks = 2},
                      Shape{.states = StateForm::kSplit, .f32_chunks = 2},
                      Shape{.micro_batches = 2, .states = StateForm::kSplit8, .f32_chunks = 1},
                      Shape{.chunk_elements = 270'336, .chunks = 2, .f32_chunks = 1}));

// The second piece begins in the middle of the chunk's scales, and ends in half a block.
TEST(Spill, SmallStatesOfAChunkWithTwoPiecesHaveTheBitsOfTheHost) {
  for (const StateForm states : {StateForm::kSplitBf16, StateForm::kSplit8}) {
    const shm::JobSpec spec =
        SpecOf({.chunk_elements = shm::kPieceElements + 208, .chunks = 1, .states = states});
    ServeWorld world(OnNvme(spec));
    EXPECT_TRUE(Same(Trained(&world, spec, 2), OnHost(spec, 2))) << NameOf(states);
  }
}

// A piece is read before its update and written behind it.
TEST(Spill, TransfersOfARecordedJobAreSpansOfTheirDirectories) {
  const shm::JobSpec spec = SpecOf({.dtype = DType::kF32});
  ServeWorld world(OnNvme(spec, 2));
  SmallTrainer trainer(&world, spec);
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(7);
  ASSERT_TRUE(TrainSteps(&trainer, 0, 1));
  world.Settle();
  ASSERT_TRUE(world.Command(RecordSpans{spec.name, true}).ok());
  ASSERT_TRUE(TrainSteps(&trainer, 1, 2));
  trainer.FetchAll();
  world.Settle();

  std::map<SpanKind, std::map<ChunkId, Span>> spans;
  std::set<uint32_t> directories;
  for (const Span& span : world.tables().jobs.front()->spans->Since(0)) {
    EXPECT_LE(span.begin_ns, span.end_ns) << NameOf(span.kind);
    spans[span.kind][span.chunk] = span;
    if (WhoOf(span.kind) == SpanWho::kDrive) directories.insert(span.by);
  }
  EXPECT_EQ(directories, (std::set<uint32_t>{0, 1}));
  for (ChunkId chunk = 0; chunk < spec.chunks.size(); ++chunk) {
    ASSERT_TRUE(spans[SpanKind::kRead].count(chunk) && spans[SpanKind::kWrite].count(chunk));
    EXPECT_TRUE(spans[SpanKind::kUpdate].count(chunk));
    // The drive's clock is the world's; a worker looks at the machine's.
    EXPECT_LE(spans[SpanKind::kRead][chunk].end_ns, spans[SpanKind::kWrite][chunk].begin_ns);
  }
}

// As it lies in the planes of the host.
std::vector<float> MasterOnHost(const ServeWorld& world, ChunkId id) {
  const JobStates& states = *world.tables().jobs[0]->states;
  const ChunkPlanes& planes = states.chunk(id).planes;
  const bool split = states.chunk(id).is_split();
  std::vector<float> values(states.chunk(id).elements);
  if (!split) std::memcpy(values.data(), planes.master, values.size() * sizeof(float));
  for (size_t i = 0; i < values.size() && split; ++i) {
    values[i] = Join(reinterpret_cast<const uint16_t*>(planes.param16)[i],
                     reinterpret_cast<const int16_t*>(planes.master)[i]);
  }
  return values;
}

TEST(Spill, ASaveReadsTheMasterOfEveryForm) {
  for (const StateForm form :
       {StateForm::kF32, StateForm::kSplit, StateForm::kSplitBf16, StateForm::kSplit8}) {
    // The first chunk is fp32 in any case.
    const shm::JobSpec spec =
        SpecOf({.chunk_elements = 208, .chunks = 2, .states = form, .f32_chunks = 1});
    ServeWorld host, world(OnNvme(spec));
    SmallTrainer on_host(&host, spec), on_nvme(&world, spec);
    for (SmallTrainer* trainer : {&on_host, &on_nvme}) {
      ASSERT_TRUE(trainer->JoinAll());
      trainer->PutWeights(7);
      for (uint64_t seed = 1; seed <= 2; ++seed)
        ASSERT_EQ(trainer->Step({.learning_rate = 0.05F, .seed = seed}).error, 0u);
      trainer->FetchAll();
    }
    const UniqueFd drive(memfd_create("drive", MFD_CLOEXEC));
    const std::span<const std::byte> bytes = world.disk().bytes(0);
    ASSERT_EQ(write(drive.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    const JobStates& states = *world.tables().jobs[0]->states;
    SpillReader reader(states, {{drive.get(), world.tier().store_nonce(0)}});
    for (ChunkId id = 0; id < 2; ++id) {
      const std::vector<float> expected = MasterOnHost(host, id);
      std::vector<float> rest(expected.size() - 5);
      ASSERT_TRUE(reader.Read(id, 5, rest).ok());
      EXPECT_EQ(std::memcmp(rest.data(), expected.data() + 5, rest.size() * sizeof(float)), 0)
          << NameOf(form) << " " << id;
    }
  }
}

// The goal of the tier: what the host alone would refuse, trains.
TEST(Spill, AJobThreeTimesItsPoolTrainsWithTheSameBits) {
  const shm::JobSpec spec = SpecOf({.chunk_elements = 16 * 1024, .chunks = 24});
  const uint64_t all = shm::StateBytesOf(spec).total();
  WorldOptions options = OnNvme(spec);
  options.loop.live.states_on = StatesOn::kAuto;
  options.pool_bytes = RoundUp(all / 3, kPageBytes);
  ServeWorld world(options);
  EXPECT_TRUE(Same(Trained(&world, spec, 3), OnHost(spec, 3)));
  options.nvme_directories = 0;
  ServeWorld alone(options);
  SmallTrainer refused(&alone, spec);
  EXPECT_FALSE(refused.JoinAll());
}

TEST(Spill, TheSmallestPoolThatAdmissionAcceptsIsEnoughAndOnePageLessIsNot) {
  const shm::JobSpec spec = SpecOf({});
  WorldOptions options = OnNvme(spec);
  options.loop.live.states_on = StatesOn::kAuto;
  // With all weights on the host; a page less, with a window for some of them; and the least of
  // all.
  const uint64_t with_weights = shm::HostStateBytesOf(spec, 0).total(),
                 least = shm::LeastHostBytesOf(spec);
  ASSERT_LT(least, with_weights - kPageBytes);
  for (const uint64_t bytes : {with_weights, with_weights - kPageBytes, least}) {
    options.pool_bytes = bytes;
    ServeWorld world(options);
    EXPECT_TRUE(Same(Trained(&world, spec, 2), OnHost(spec, 2))) << bytes;
  }
  options.pool_bytes -= kPageBytes;
  {
    ServeWorld world(options);
    SmallTrainer trainer(&world, spec);
    EXPECT_FALSE(trainer.JoinAll());
    EXPECT_EQ(world.TakeReply<Refused>()->why.id(), ErrorId::kPoolFull);
  }
  options.pool_bytes += kPageBytes;
  options.nvme_bytes -= kPageBytes;
  ServeWorld world(options);
  SmallTrainer trainer(&world, spec);
  EXPECT_FALSE(trainer.JoinAll());
  EXPECT_EQ(world.TakeReply<Refused>()->why.id(), ErrorId::kNvmeFull);
}

// Kills the server after `turns` turns of whatever goes on, and lets the ranks come back to the
// next one.
void KillAfter(ServeWorld* world, SmallTrainer* trainer, uint32_t turns) {
  for (uint32_t i = 0; i < turns; ++i) world->loop().Turn();
  world->Restart();
  for (const auto& rank : trainer->ranks()) ASSERT_TRUE(world->Resume(rank.get(), trainer->spec()));
}

class SpillKills : public ::testing::TestWithParam<Shape> {};

TEST_P(SpillKills, InTheMiddleOfStoringAndUpdatingChangeNoBit) {
  const shm::JobSpec spec = SpecOf(GetParam());
  const Weights expected = OnHost(spec, 3);
#ifdef TIDEPOOL_SANITIZED
  constexpr uint32_t kStride = 11;
#else
  constexpr uint32_t kStride = 1;
#endif
  uint32_t stride = GetParam().large() ? 7 * kStride : kStride;
  if (GetParam().states != StateForm::kF32) stride = std::max(stride, 3u);
  for (uint32_t turns = 0; turns < 40; turns += stride) {
    ServeWorld world(OnNvme(spec));
    world.disk().Pace(2);
    SmallTrainer trainer(&world, spec);
    ASSERT_TRUE(trainer.JoinAll());
    trainer.PutWeights(7);
    KillAfter(&world, &trainer, turns);
    for (uint64_t step = 0; step < 3; ++step) {
      ASSERT_EQ(trainer.Step({.learning_rate = 0.05F, .seed = step + 1}).error, 0u);
      KillAfter(&world, &trainer, turns);
      if (turns % 3 == 0) KillAfter(&world, &trainer, turns / 2);
    }
    ASSERT_TRUE(Same(trainer.FetchAll(), expected)) << "killed after " << turns << " turns";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, SpillKills,
    ::testing::Values(Shape{DType::kF32}, Shape{DType::kBF16}, Shape{DType::kBF16, 2, 2},
                      Shape{DType::kBF16, 1, 1, OptimizerRule::kAdamW, 270'336, 1}));

INSTANTIATE_TEST_SUITE_P(
    Forms, SpillKills,
    ::testing::Values(Shape{.states = StateForm::kSplit},
                      Shape{.world = 2, .micro_batches = 2, .states = StateForm::kSplit8}));

class SpillFaults : public ::testing::Test {
 protected:
  // Trains until the job ends or the steps are done; the reason why it ended.
  ErrorId Train(uint32_t steps) {
    for (uint64_t step = 0; step < steps; ++step) {
      trainer_.set_version(version_);
      trainer_.Submit({.learning_rate = 0.05F, .seed = ++seed_});
      for (const auto& rank : trainer_.ranks()) rank->EndStep(version_, 0.05F);
      world_.Settle();
      if (const auto over = world_.TakeReply<SessionOver>()) {
        text_ = over->why.Line();
        return over->why.id();
      }
      while (trainer_.rank(0).Take()) {
      }
      ++version_;
    }
    return ErrorId::kNone;
  }
  void Start() {
    ASSERT_TRUE(trainer_.JoinAll());
    trainer_.PutWeights(7);
    world_.Settle();
  }
  // What lies on the disk of every piece changes by one bit.
  void DamageAll() {
    const std::span<std::byte> bytes = world_.disk().bytes(0);
    for (uint64_t at = 100; at < bytes.size(); at += kPageBytes) bytes[at] ^= std::byte{16};
  }

  ServeWorld world_{OnNvme(SpecOf({.chunk_elements = 4096}))};
  SmallTrainer trainer_{&world_, SpecOf({.chunk_elements = 4096})};
  uint64_t seed_ = 0;
  Version version_ = 0;
  std::string text_;
};

TEST_F(SpillFaults, ABitThatFlippedAtRestEndsTheJobByNameAndNobodyElse) {
  Start();
  ASSERT_EQ(Train(2), ErrorId::kNone);
  DamageAll();
  EXPECT_EQ(Train(2), ErrorId::kNvmeDataBad);
  EXPECT_NE(text_.find("chunk"), std::string::npos) << text_;
  world_.Settle();
  EXPECT_EQ(world_.tier().used_bytes(), 0u);
  EXPECT_EQ(world_.pool().free_bytes(), world_.pool().total_bytes());
  SmallTrainer next(&world_, SpecOf({.chunk_elements = 4096}));
  EXPECT_TRUE(next.JoinAll()) << "the server goes on";
}

TEST_F(SpillFaults, ADeviceThatNeverReadsEndsTheJobByName) {
  Start();
  world_.disk().Arm(nvme::DiskFault::kReadError, 1);
  EXPECT_EQ(Train(1), ErrorId::kNvmeIoFailed);
  EXPECT_NE(text_.find("cannot be read at offset "), std::string::npos) << text_;
}

TEST_F(SpillFaults, AFlushThatFailsAtAdmissionEndsTheJobByName) {
  world_.disk().Arm(nvme::DiskFault::kSyncError, 1);
  trainer_.JoinAll();
  world_.Settle();
  const auto over = world_.TakeReply<SessionOver>();
  ASSERT_TRUE(over.has_value());
  EXPECT_EQ(over->why.id(), ErrorId::kNvmeIoFailed);
}

// A piece is read three times at most, so bits flip more rarely here.
TEST_F(SpillFaults, ErrorsThatPassAreRepairedWithoutATrace) {
  world_.disk().Arm(nvme::DiskFault::kFlipInAnswer, 100);
  for (const auto fault :
       {nvme::DiskFault::kReadError, nvme::DiskFault::kWriteError, nvme::DiskFault::kShort,
        nvme::DiskFault::kAgain, nvme::DiskFault::kInterrupted, nvme::DiskFault::kStall}) {
    world_.disk().Arm(fault, 25);
  }
  Start();
  ASSERT_EQ(Train(12), ErrorId::kNone) << text_;
  EXPECT_GT(world_.disk().faults(), 20u);
  ServeWorld host;
  SmallTrainer other(&host, SpecOf({.chunk_elements = 4096}));
  ASSERT_TRUE(other.JoinAll());
  other.PutWeights(7);
  for (uint64_t seed = 1; seed <= 12; ++seed) other.Step({.learning_rate = 0.05F, .seed = seed});
  trainer_.set_version(version_);
  EXPECT_TRUE(Same(trainer_.FetchAll(), other.FetchAll()));
}

TEST(Spill, AServerThatIsNotGivenTheDirectoriesOfAKeptJobDoesNotStartAndTheJobWaits) {
  const shm::JobSpec spec = SpecOf({});
  const Weights expected = OnHost(spec, 2);
  ServeWorld world(OnNvme(spec, 2));
  SmallTrainer trainer(&world, spec);
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(7);
  ASSERT_EQ(trainer.Step({.learning_rate = 0.05F, .seed = 1}).error, 0u);
  for (const auto given : {ServeWorld::Given::kNone, ServeWorld::Given::kReversed}) {
    world.GiveDisks(given);
    world.Restart();
    EXPECT_EQ(world.recovered().id(), ErrorId::kNvmeDirectoryMissing);
  }
  world.GiveDisks(ServeWorld::Given::kAll);
  world.Restart();
  ASSERT_TRUE(world.recovered().ok()) << world.recovered().Line();
  for (const auto& rank : trainer.ranks()) ASSERT_TRUE(world.Resume(rank.get(), spec));
  ASSERT_EQ(trainer.Step({.learning_rate = 0.05F, .seed = 2}).error, 0u);
  EXPECT_TRUE(Same(trainer.FetchAll(), expected));
}

// The first of two directories is gone, and is empty: its job is told, others go on, and when it is
// back the job does, too.
TEST(Spill, AJobOneOfWhoseDirectoriesIsGoneIsSetAsideAndGoesOnWhenItIsBack) {
  const shm::JobSpec spec = SpecOf({});
  shm::JobSpec small = SpecOf({.chunks = 1});
  small.name = "another";
  const Weights expected = OnHost(spec, 2);
  ServeWorld world(OnNvme(spec, 2));
  SmallTrainer trainer(&world, spec);
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(7);
  ASSERT_EQ(trainer.Step({.learning_rate = 0.05F, .seed = 1}).error, 0u);
  const uint64_t free = world.pool().free_bytes();
  const auto expect_told = [&world] {
    world.Settle();
    const auto refused = world.TakeReply<Refused>();
    ASSERT_TRUE(refused.has_value());
    EXPECT_EQ(refused->why.id(), ErrorId::kNvmeDirectoryMissing) << refused->why.Line();
    EXPECT_NE(refused->why.what().find("(job)"), std::string::npos) << refused->why.Line();
    EXPECT_EQ(refused->why.where(), "simulated0");
  };
  for (const auto given : {ServeWorld::Given::kFirstEmpty, ServeWorld::Given::kFirstGone}) {
    world.GiveDisks(given);
    world.Restart();
    ASSERT_TRUE(world.recovered().ok()) << world.recovered().Line();
    EXPECT_TRUE(world.tables().jobs.empty());
    ASSERT_EQ(world.tables().set_aside.size(), 1u);
    EXPECT_EQ(world.pool().free_bytes(), free) << "its places stay its own";

    world.AskToResume(trainer.rank(0), spec);
    expect_told();
    world.Reserve(spec, 0);
    expect_told();
    SmallTrainer other(&world, small);
    ASSERT_TRUE(other.JoinAll());
    other.PutWeights(3);
    EXPECT_EQ(other.Step({.learning_rate = 0.05F, .seed = 1}).error, 0u);
    other.LeaveAll();
    world.Settle();
  }
  world.GiveDisks(ServeWorld::Given::kAll);
  world.Restart();
  ASSERT_TRUE(world.recovered().ok()) << world.recovered().Line();
  EXPECT_TRUE(world.tables().set_aside.empty());
  for (const auto& rank : trainer.ranks()) ASSERT_TRUE(world.Resume(rank.get(), spec));
  ASSERT_EQ(trainer.Step({.learning_rate = 0.05F, .seed = 2}).error, 0u);
  EXPECT_TRUE(Same(trainer.FetchAll(), expected));
}

// A worker died in the middle of an addition, and the job's drive was gone at the restart: other
// jobs wrote over what had been saved of the addition, and the job was given up when the drive came
// back.
TEST(Spill, AnOpenTileOfAJobThatIsSetAsideIsClosedBeforeOthersWork) {
  struct Killed {};
  const shm::JobSpec spec = SpecOf({.micro_batches = 2});
  shm::JobSpec small = SpecOf({.micro_batches = 2, .chunk_elements = 4096, .chunks = 1});
  small.name = "another";
  const Weights expected = OnHost(spec, 2);
  WorldOptions options = OnNvme(spec, 2);
  options.nvme_bytes += shm::NvmeBytesOf(small, 0);
  ServeWorld world(options);
  SmallTrainer trainer(&world, spec);
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(7);
  ASSERT_EQ(trainer.Step({.learning_rate = 0.05F, .seed = 1}).error, 0u);
  trainer.FetchAll();  // its update is over: what comes now are additions
  int tiles = 0;
  SetPointHook([&tiles](const char* name) {
    if (std::string_view(name) == "optim.tile_written" && ++tiles == 2) throw Killed();
  });
  EXPECT_THROW(trainer.Step({.learning_rate = 0.05F, .seed = 2}), Killed);
  SetPointHook({});

  world.GiveDisks(ServeWorld::Given::kFirstGone);
  world.Restart();
  ASSERT_EQ(world.tables().set_aside.size(), 1u);
  SmallTrainer other(&world, small);
  ASSERT_TRUE(other.JoinAll());
  other.PutWeights(3);
  EXPECT_EQ(other.Step({.learning_rate = 0.05F, .seed = 1}).error, 0u);
  other.LeaveAll();
  world.Settle();

  world.GiveDisks(ServeWorld::Given::kAll);
  world.Restart();
  ASSERT_EQ(world.tables().jobs.size(), 1u) << "the job is kept";
  const Job& job = *world.tables().jobs.front();
  world.Post(AwaitedRankLost{job.id, 0, trainer.rank(0).nonce()});
  world.loop().Turn();
  ASSERT_TRUE(trainer.JoinAll());
  ASSERT_EQ(trainer.Step({.learning_rate = 0.05F, .seed = 2}).error, 0u);
  EXPECT_TRUE(Same(trainer.FetchAll(), expected));
}

TEST(Spill, ADirectoryWhoseFlushFailedTakesNoNewJobAndTheOthersDo) {
  const shm::JobSpec spec = SpecOf({});
  ServeWorld world(OnNvme(spec, 2));
  world.disk().FailSyncOf(0);  // the data file of the first directory
  SmallTrainer first(&world, spec);
  first.JoinAll();
  world.Settle();
  const auto over = world.TakeReply<SessionOver>();
  ASSERT_TRUE(over.has_value());
  EXPECT_EQ(over->why.id(), ErrorId::kNvmeIoFailed);
  ASSERT_TRUE(world.tier().store(0).poisoned());
  EXPECT_EQ(world.tier().LargestFree()[0], 0u);
  SmallTrainer second(&world, spec);
  ASSERT_TRUE(second.JoinAll()) << "all of it lies in the second directory";
  second.PutWeights(3);
  EXPECT_EQ(second.Step({.learning_rate = 0.05F, .seed = 1}).error, 0u);
}

TEST(Spill, AJobThatAnotherServerLeftOnUnknownDirectoriesIsGivenUp) {
  const shm::JobSpec spec = SpecOf({});
  ServeWorld world(OnNvme(spec));
  SmallTrainer trainer(&world, spec);
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(1);
  trainer.Step({.seed = 1});
  for (const uint32_t file : {1u, 2u}) {
    nvme::EncodeManifest(
        {.generation = 90, .store = 7, .capacity = world.disk().bytes(0).size(), .entries = {}},
        world.disk().bytes(file));
  }
  world.Restart();
  EXPECT_TRUE(world.tables().jobs.empty());
}

}  // namespace spill_test
}  // namespace tidepool::memserver
