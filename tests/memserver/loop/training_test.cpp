// Training through the serve loop against an independent model: types, ranks, accumulation,
// clipping, overflow, groups, workers.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include <gtest/gtest.h>
#include "base/formats/split_float.h"
#include "memserver/control/whole_order.h"
#include "shm/spec/validate.h"
#include "tests/fakes/small_trainer.h"

namespace tidepool::memserver {
namespace training_test {

constexpr double kFloatTolerance = 2e-6;
constexpr double kBf16Tolerance = 1.0 / 256;  // half a unit in the last place of 8 bits
constexpr double kFp16Tolerance = 1.0 / 2048;

double ToleranceOf(DType dtype) {
  return dtype == DType::kF32    ? kFloatTolerance
         : dtype == DType::kBF16 ? kBf16Tolerance
                                 : kFp16Tolerance;
}

struct Shape {
  DType dtype;
  uint32_t world;
  uint32_t micro_batches;
  OptimizerRule rule = OptimizerRule::kAdamW;
  StateForm states = StateForm::kF32;
  uint32_t f32_chunks = 0;
  uint32_t sums_gradients = 0;
};

class Training : public ::testing::TestWithParam<Shape> {};

TEST_P(Training, FollowsTheModelForFiveSteps) {
  const Shape shape = GetParam();
  ServeWorld world;
  shm::JobSpec spec = MakeSpec({.world = shape.world,
                                .dtype = shape.dtype,
                                .chunks = 3,
                                .chunk_elements = 192 * shape.world,
                                .micro_batches = shape.micro_batches,
                                .max_grad_norm = 2,
                                .f32_chunks = shape.f32_chunks,
                                .sums_gradients = shape.sums_gradients});
  spec.optimizer.rule = shape.rule;
  spec.optimizer.states = shape.states;
  spec.optimizer.momentum = 0.9;
  SmallTrainer trainer(&world, spec);
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(7);
  EXPECT_EQ(trainer.Compare(ToleranceOf(shape.dtype)), "");
  for (uint64_t step = 0; step < 5; ++step) {
    const shm::Completion end = trainer.Step({.learning_rate = 0.05F, .seed = step + 1});
    ASSERT_EQ(end.error, 0u);
    EXPECT_EQ(end.skipped, 0u);
    EXPECT_EQ(trainer.Compare(ToleranceOf(shape.dtype)), "") << "after step " << step;
  }
  trainer.LeaveAll();
  EXPECT_EQ(world.pool().free_bytes(), world.pool().total_bytes());
}

INSTANTIATE_TEST_SUITE_P(
    AllShapes, Training,
    ::testing::Values(Shape{DType::kF32, 1, 1}, Shape{DType::kF32, 3, 1}, Shape{DType::kF32, 2, 3},
                      Shape{DType::kBF16, 1, 1}, Shape{DType::kBF16, 2, 2},
                      Shape{DType::kF16, 2, 1}, Shape{DType::kF16, 4, 3},
                      Shape{DType::kF32, 2, 1, OptimizerRule::kSgd},
                      Shape{DType::kBF16, 2, 2, OptimizerRule::kLion},
                      Shape{DType::kF16, 2, 1, OptimizerRule::kAdagrad},
                      Shape{DType::kBF16, 3, 1, OptimizerRule::kAdamW, StateForm::kSplit},
                      Shape{DType::kBF16, 2, 3, OptimizerRule::kAdam, StateForm::kSplit},
                      Shape{DType::kBF16, 2, 1, OptimizerRule::kAdamW, StateForm::kSplitBf16},
                      Shape{DType::kBF16, 2, 1, OptimizerRule::kSgd, StateForm::kSplit8}));

INSTANTIATE_TEST_SUITE_P(
    Mixed, Training,
    ::testing::Values(Shape{.dtype = DType::kBF16, .world = 1, .micro_batches = 1, .f32_chunks = 1},
                      Shape{.dtype = DType::kF16, .world = 2, .micro_batches = 3, .f32_chunks = 2},
                      Shape{.dtype = DType::kBF16,
                            .world = 2,
                            .micro_batches = 2,
                            .states = StateForm::kSplitBf16,
                            .f32_chunks = 1},
                      Shape{.dtype = DType::kBF16,
                            .world = 1,
                            .micro_batches = 1,
                            .states = StateForm::kSplit8,
                            .f32_chunks = 2}));

INSTANTIATE_TEST_SUITE_P(
    SummedByTheRanks, Training,
    ::testing::Values(
        Shape{.dtype = DType::kBF16, .world = 1, .micro_batches = 1, .sums_gradients = 1},
        Shape{.dtype = DType::kF16, .world = 2, .micro_batches = 1, .sums_gradients = 1},
        Shape{.dtype = DType::kBF16,
              .world = 2,
              .micro_batches = 1,
              .states = StateForm::kSplit,
              .f32_chunks = 1,
              .sums_gradients = 1}));

// The same steps, with gradients of zeros as bytes and without: the same bits, in every form of a
// state, whichever micro-batches they are of.
TEST(Zeros, WithoutBytesAreThoseWithThem) {
  for (const StateForm states : {StateForm::kF32, StateForm::kSplit}) {
    for (const uint32_t micro_batches : {1U, 3U}) {
      std::vector<std::vector<std::vector<float>>> after;
      for (const bool as_bytes : {true, false}) {
        ServeWorld world;
        shm::JobSpec spec = MakeSpec({.world = 2,
                                      .dtype = DType::kBF16,
                                      .chunks = 3,
                                      .chunk_elements = 384,
                                      .micro_batches = micro_batches});
        spec.optimizer.states = states;
        SmallTrainer trainer(&world, spec);
        ASSERT_TRUE(trainer.JoinAll());
        trainer.PutWeights(7);
        for (uint64_t step = 0; step < 4; ++step) {
          StepPlan plan{.seed = step + 1};
          plan.zeros_as_bytes = as_bytes;
          for (uint32_t micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
            for (ChunkId chunk = 0; chunk < 3; ++chunk) {
              if ((step + micro_batch + chunk) % 2 == 0) plan.zeros.insert({micro_batch, chunk});
            }
          }
          ASSERT_EQ(trainer.Step(plan).error, 0u);
        }
        EXPECT_EQ(trainer.Compare(kBf16Tolerance), "");
        after.push_back(trainer.FetchAll());
      }
      EXPECT_EQ(after[0], after[1]) << micro_batches;
    }
  }
}

TEST(Zeros, ThatNameMemoryEndTheSession) {
  ServeWorld world;
  SmallTrainer trainer(&world, MakeSpec({}));
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(7);
  world.AwaitWeights("job");
  FakeRank& rank = trainer.rank(0);
  shm::Request request =
      FakeRank::SubmitRequest({0, 0, trainer.spec().chunks[0].elements, 64, 0, 0});
  request.flags = shm::kZeros;
  rank.Send(request);
  world.Settle();
  EXPECT_EQ(rank.Ended(), ErrorId::kProtocolViolation);
}

// A sum takes four bytes an element, also where its chunk has two.
TEST(SummedGradients, OneThatEndsBehindTheRcacheEndsTheSession) {
  ServeWorld world;
  SmallTrainer trainer(&world, MakeSpec({.dtype = DType::kBF16, .sums_gradients = 1}));
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(7);
  world.AwaitWeights("job");
  FakeRank& rank = trainer.rank(0);
  const uint64_t elements = trainer.spec().chunks[0].elements;
  rank.Submit({0, 0, elements, trainer.spec().rcache_bytes - elements * 4, 0, 0});
  world.Settle();
  EXPECT_EQ(rank.Ended(), std::nullopt);
  rank.Submit({1, 0, elements, trainer.spec().rcache_bytes - elements * 2, 0, 0});
  world.Settle();
  EXPECT_EQ(rank.Ended(), ErrorId::kProtocolViolation);
}

// Two groups of ranks (as experts have), and a chunk that all ranks share.
shm::JobSpec TwoGroupSpec() {
  shm::JobSpec spec =
      MakeSpec({.world = 4, .chunks = 3, .chunk_elements = 256, .max_grad_norm = 1});
  spec.data_groups = {{0b1111}, {0b0011}, {0b1010}};
  for (ChunkId id = 0; id < 3; ++id) spec.chunks[id].data_group = id;
  EXPECT_TRUE(shm::Validate(spec).ok());
  return spec;
}

TEST(TrainingGroups, ChunksOfSeveralDataGroupsShareOneNorm) {
  ServeWorld world;
  SmallTrainer trainer(&world, TwoGroupSpec());
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(3);
  for (uint64_t step = 0; step < 3; ++step) {
    EXPECT_EQ(trainer.Step({.seed = step}).error, 0u);
    EXPECT_EQ(trainer.Compare(kFloatTolerance), "");
  }
}

TEST(TrainingGroups, ARankOutsideTheGroupMayNotTouchItsChunk) {
  ServeWorld world;
  SmallTrainer trainer(&world, TwoGroupSpec());
  ASSERT_TRUE(trainer.JoinAll());
  trainer.rank(2).Put(1, 0, 64, 0);
  world.Settle();
  EXPECT_EQ(trainer.rank(2).Ended(), ErrorId::kProtocolViolation);
  EXPECT_EQ(trainer.rank(0).Ended(), std::nullopt);
}

TEST(TrainingNorm, IsOfTheUnscaledGradientsBeforeClipping) {
  ServeWorld world;
  SmallTrainer trainer(&world, MakeSpec({.world = 2, .max_grad_norm = 0.25F}));
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(1);
  const double norm = trainer.Step({.loss_scale = 1, .seed = 5}).grad_norm;
  EXPECT_GT(norm, 1.0);
  ServeWorld second_world;
  SmallTrainer scaled(&second_world, trainer.spec());
  ASSERT_TRUE(scaled.JoinAll());
  scaled.PutWeights(1);
  EXPECT_DOUBLE_EQ(scaled.Step({.loss_scale = 1024, .seed = 5}).grad_norm, norm);
  EXPECT_EQ(scaled.FetchAll(), trainer.FetchAll()) << "powers of two as loss scales change no bit";
}

TEST(TrainingOverflow, ASkippedStepAdvancesTheVersionAndNothingElse) {
  ServeWorld world;
  SmallTrainer trainer(
      &world, MakeSpec({.world = 2, .dtype = DType::kF16, .micro_batches = 2, .loss_scaling = 1}));
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(2);
  trainer.Step({.loss_scale = 64, .seed = 1});
  const auto before = trainer.FetchAll();
  const shm::Completion end = trainer.Step({.loss_scale = 64, .seed = 2, .poisoned = true});
  EXPECT_EQ(end.error, 0u);
  EXPECT_EQ(end.skipped, 1u);
  EXPECT_EQ(end.version, 2u);
  EXPECT_FALSE(std::isfinite(end.grad_norm));
  EXPECT_EQ(trainer.FetchAll(), before);
  // Bias correction counts the steps that were taken; the model does not count the skipped one
  // either.
  EXPECT_EQ(trainer.Step({.loss_scale = 32, .seed = 3}).skipped, 0u);
  EXPECT_EQ(trainer.Compare(kFp16Tolerance), "");
}

TEST(TrainingOverflow, WithoutLossScalingTheStepIsNotSealedAndMayBeRepeated) {
  ServeWorld world;
  SmallTrainer trainer(&world, MakeSpec({.world = 2, .micro_batches = 2}));
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(2);
  const shm::Completion bad = trainer.Step({.seed = 1, .poisoned = true});
  EXPECT_EQ(bad.error, static_cast<uint32_t>(ErrorId::kNonFinite));
  EXPECT_EQ(bad.version, 0u);
  const shm::Completion good = trainer.Step({.seed = 1});
  EXPECT_EQ(good.error, 0u);
  EXPECT_EQ(good.version, 1u);
  EXPECT_EQ(trainer.Compare(kFloatTolerance), "");
}

// Weights after four steps, as bits.
std::vector<std::vector<float>> TrainedBits(const WorldOptions& options, const shm::JobSpec& spec,
                                            Rank first) {
  ServeWorld world(options);
  SmallTrainer trainer(&world, spec);
  EXPECT_TRUE(trainer.JoinAll());
  trainer.PutWeights(11);
  for (uint64_t step = 0; step < 4; ++step) {
    const StepPlan plan{.learning_rate = 0.02F, .seed = step};
    trainer.Submit(plan, first);
    trainer.set_version(trainer.EndStep(plan).version);
  }
  return trainer.FetchAll();
}

bool SameBits(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].size() != b[i].size() ||
        std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0)
      return false;
  }
  return a.size() == b.size();
}

TEST(TrainingBits, DoNotDependOnWorkersCopyThreadsOrOrderOfArrival) {
  // Chunks of more than one piece each, and shards that copy threads copy together.
  const shm::JobSpec spec = MakeSpec({.world = 2,
                                      .chunks = 1,
                                      .chunk_elements = 2304 * 1024,
                                      .micro_batches = 2,
                                      .max_grad_norm = 1,
                                      .rcache_bytes = 20 * kMiB});
  WorldOptions plain{.pool_bytes = 128 * kMiB};
  plain.loop.rcache_limit = 64 * kMiB;
  const auto expected = TrainedBits(plain, spec, 0);
  WorldOptions one_worker = plain;
  one_worker.workers = 1;
  EXPECT_TRUE(SameBits(TrainedBits(one_worker, spec, 0), expected));
  for (const uint32_t copy_threads : {1u, 3u}) {
    WorldOptions threads = plain;
    threads.workers = 3;
    threads.copy_threads = copy_threads;
    EXPECT_TRUE(SameBits(TrainedBits(threads, spec, 1), expected)) << copy_threads;
  }
}

// Eight parameters of 300 to 2,700 elements, packed one behind the other into chunks of at least
// `chunk_elements`.
shm::JobSpec Packed(uint64_t chunk_elements, uint32_t ranks) {
  shm::JobSpec spec =
      MakeSpec({.world = ranks, .chunks = 1, .micro_batches = 2, .max_grad_norm = 1});
  spec.chunks.clear();
  spec.parameters.clear();
  uint64_t at = 0;
  for (uint32_t id = 0; id < 8; ++id) {
    const uint64_t count = 300 + 343 * id;
    if (at >= chunk_elements || id == 0) {
      spec.chunks.push_back({0, 0});
      at = 0;
    }
    const auto chunk = static_cast<ChunkId>(spec.chunks.size() - 1);
    spec.parameters.push_back({"p" + std::to_string(id), {count}, chunk, id % 2, at, count});
    at = RoundUp(at + count, 16);
    spec.chunks.back().elements = RoundUp(at, 16 * ranks);
  }
  EXPECT_TRUE(shm::Validate(spec).ok());
  return spec;
}

TEST(TrainingBits, DoNotDependOnChunkSizeOrNumberOfShards) {
  std::vector<std::vector<float>> expected;
  for (const uint64_t chunk_elements : {1, 2000, 100000}) {
    for (const uint32_t ranks : {1, 3}) {
      ServeWorld world;
      SmallTrainer trainer(&world, Packed(chunk_elements, ranks));
      ASSERT_TRUE(trainer.JoinAll());
      trainer.PutWeights(3);
      for (uint64_t step = 0; step < 6; ++step)
        trainer.Step({.learning_rate = 0.03F, .seed = step});
      EXPECT_EQ(trainer.Compare(kFloatTolerance), "");
      if (expected.empty()) expected = trainer.FetchParameters();
      EXPECT_TRUE(SameBits(trainer.FetchParameters(), expected))
          << chunk_elements << " elements, " << ranks << " ranks";
    }
  }
}

TEST(TrainingPieces, AChunkOfSeveralPiecesFollowsTheModel) {
  ServeWorld world({.pool_bytes = 64 * kMiB});
  SmallTrainer trainer(
      &world, MakeSpec({.chunks = 1, .chunk_elements = 320 * 1024 + 32, .rcache_bytes = 4 * kMiB}));
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(5);
  ASSERT_EQ(world.tables().jobs.front()->states->chunk(0).pieces, 2u);
  for (uint64_t step = 0; step < 2; ++step) trainer.Step({.seed = step + 1});
  EXPECT_EQ(trainer.Compare(kFloatTolerance), "");
}

TEST(TrainingSchedule, UpdatesRunInTheDeclaredOrder) {
  ServeWorld world;
  SmallTrainer trainer(&world, MakeSpec({.chunks = 4}));
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(1);
  world.Post(DeclareSchedule{trainer.rank(0).connection(),
                             WholeOrder(std::vector<ChunkId>{2, 0, 2, 3}, 4)});
  trainer.Submit({});
  trainer.rank(0).EndStep(0, 0.01F);
  std::vector<ChunkId> order;
  Job* job = world.tables().jobs.front().get();
  for (int turn = 0; turn < 100 && order.size() < 4; ++turn) {
    world.loop().Turn();
    for (ChunkId id = 0; id < 4; ++id) {
      const bool known = std::find(order.begin(), order.end(), id) != order.end();
      if (!known && job->states->chunk(id).version == 1) order.push_back(id);
    }
  }
  EXPECT_EQ(order, (std::vector<ChunkId>{2, 0, 3, 1}));
}

TEST(TrainingFetch, OfTheNextVersionWaitsForItsChunkOnly) {
  WorldOptions options;
  options.loop.run_inline_work = false;  // the test does the workers' work
  ServeWorld world(options);
  SmallTrainer trainer(&world, MakeSpec({.chunks = 2}));
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(1);
  trainer.Submit({});
  FakeRank& rank = trainer.rank(0);
  rank.EndStep(0, 0.01F);
  world.Settle();
  while (world.team().waiting() > 0) {  // the scans
    world.team().RunOne(0);
    world.loop().Turn();
    if (rank.Take()) break;  // sealed; its updates are waiting now
  }
  const uint64_t second = rank.Fetch(1, 0, 192, 4096, 1);
  const uint64_t first = rank.Fetch(0, 0, 192, 0, 1);
  world.Settle();
  EXPECT_EQ(rank.Take(), std::nullopt);
  world.team().RunOne(0);
  world.Settle();
  const auto answer = rank.Take();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->counter, first);
  EXPECT_EQ(rank.Take(), std::nullopt);
  world.team().RunOne(0);
  world.Settle();
  EXPECT_EQ(rank.Take()->counter, second);
}

shm::JobSpec SplitSpec(const SpecOptions& options) {
  shm::JobSpec spec = MakeSpec(options);
  spec.optimizer.states = StateForm::kSplit;
  return spec;
}

// They share one staging buffer.
TEST(TrainingSplit, PutsThatAreInFlightTogetherLandOneAfterTheOther) {
  ServeWorld world;
  SmallTrainer trainer(&world, SplitSpec({.dtype = DType::kBF16}));
  ASSERT_TRUE(trainer.JoinAll());
  FakeRank& rank = trainer.rank(0);
  const auto weight = [](uint64_t i) { return 1.0F + static_cast<float>(i) * 0x1p-14F; };
  for (uint64_t i = 0; i < 384; ++i) rank.At<float>(0)[i] = weight(i);
  std::vector<uint64_t> counters;
  for (const ChunkId chunk : {0u, 1u}) {
    for (const uint64_t begin : {0u, 96u})
      counters.push_back(rank.Put(chunk, begin, 96, (192 * chunk + begin) * sizeof(float)));
  }
  for (const uint64_t counter : counters) EXPECT_EQ(world.Await(&rank, counter).error, 0u);
  for (const ChunkId chunk : {0u, 1u}) {
    ASSERT_EQ(world.Await(&rank, rank.Fetch(chunk, 0, 192, 4096, 0)).error, 0u);
    const Chunk& kept = world.tables().jobs.front()->states->chunk(chunk);
    for (uint64_t i = 0; i < 192; ++i) {
      const SplitFloat halves = Split(weight(192 * chunk + i));
      ASSERT_EQ(rank.At<uint16_t>(4096)[i], halves.high) << chunk << " " << i;
      ASSERT_EQ(reinterpret_cast<const int16_t*>(kept.planes.master)[i], halves.rest)
          << chunk << " " << i;
    }
  }
}

// A chunk that is not split goes around the staging buffer, which stays taken meanwhile.
TEST(TrainingSplit, PutsOfAnFp32ChunkBetweenDoNotFreeTheStagingBuffer) {
  ServeWorld world;
  SmallTrainer trainer(&world, SplitSpec({.dtype = DType::kBF16, .f32_chunks = 1}));
  ASSERT_TRUE(trainer.JoinAll());
  FakeRank& rank = trainer.rank(0);
  const auto weight = [](uint64_t i) { return 1.0F + static_cast<float>(i) * 0x1p-14F; };
  for (uint64_t i = 0; i < 384; ++i) rank.At<float>(0)[i] = weight(i);
  std::vector<uint64_t> counters;
  for (const uint64_t begin : {0u, 96u}) {
    for (const ChunkId chunk : {1u, 0u})
      counters.push_back(rank.Put(chunk, begin, 96, (192 * chunk + begin) * sizeof(float)));
  }

  for (const uint64_t counter : counters) EXPECT_EQ(world.Await(&rank, counter).error, 0u);
  const JobStates& states = *world.tables().jobs.front()->states;
  EXPECT_EQ(states.chunk(0).planes.param16, nullptr);
  for (uint64_t i = 0; i < 192; ++i) {
    ASSERT_EQ(reinterpret_cast<const float*>(states.chunk(0).planes.master)[i], weight(i)) << i;
    const SplitFloat halves = Split(weight(192 + i));
    ASSERT_EQ(reinterpret_cast<const uint16_t*>(states.chunk(1).planes.param16)[i], halves.high);
    ASSERT_EQ(reinterpret_cast<const int16_t*>(states.chunk(1).planes.master)[i], halves.rest);
  }
}

TEST(TrainingSplit, MoreWeightsThanAreStagedAtOnceEndTheSession) {
  constexpr uint64_t kTooMany = shm::kSplitPutBytesMax / sizeof(float) + 16;
  ServeWorld world({.pool_bytes = 24 * kMiB});
  SmallTrainer trainer(&world, SplitSpec({.dtype = DType::kBF16,
                                          .chunks = 1,
                                          .chunk_elements = kTooMany,
                                          .rcache_bytes = 5 * kMiB}));
  ASSERT_TRUE(trainer.JoinAll());
  trainer.rank(0).Put(0, 0, kTooMany, 0);
  world.Settle();
  EXPECT_TRUE(trainer.rank(0).Ended());
}

}  // namespace training_test
}  // namespace tidepool::memserver
