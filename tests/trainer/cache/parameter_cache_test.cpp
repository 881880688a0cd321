// ParameterCache trains a toy model right, decides alike on all ranks, and fetches as little as can
// be.
#include "trainer/cache/parameter_cache.h"

#include <gtest/gtest.h>

#include "tests/trainer/cache/toy_run.h"
#include "tests/trainer/plan/exhaustive.h"
#include "trainer/plan/replay.h"

namespace tidepool::trainer {
namespace parameter_cache_test {

constexpr uint64_t kToyChunkBytes = 192 * 4;  // a few parameters each

ToyConfig Toy(uint64_t seed, int layers, uint32_t world) {
  ToyConfig config;
  config.model = MakeToyModel(seed, layers, 1);
  config.layout.world = world;
  config.layout.chunk_bytes = kToyChunkBytes;
  config.cache.seed = seed;
  return config;
}

CacheCounters LastStep(const ToyRankResult& rank, size_t step) {
  CacheCounters now = rank.after_step[step];
  const CacheCounters& before = rank.after_step[step - 1];
  now.misses -= before.misses;
  now.prefetches -= before.prefetches;
  now.submits -= before.submits;
  now.bytes_h2d -= before.bytes_h2d;
  now.bytes_d2h -= before.bytes_d2h;
  return now;
}

TEST(PassFollower, CountsTheMomentsBeforeTheOneThatNeedsAStep) {
  const AccessSchedule order{{{.chunks = {0}}, {.chunks = {1}}, {.chunks = {2}}, {.chunks = {0}}}};
  PassFollower follower({true, true, true}, 2);
  follower.Declare(PassKind::kTrain, order);
  ASSERT_TRUE(follower.Begin(PassKind::kTrain, {}).ok());
  const PlanStep* first = follower.TakeStepAhead(0, 2);
  ASSERT_TRUE(first != nullptr && first->chunk == 0);
  EXPECT_EQ(follower.UsesUntil(*first), 1u) << "no operator stands still yet";
  const PlanStep* second = follower.TakeStepAhead(0, 2);
  ASSERT_TRUE(second != nullptr && second->chunk == 1);
  EXPECT_EQ(follower.UsesUntil(*second), 2u);
  follower.Enter(order.moments[0]);
  EXPECT_EQ(follower.UsesUntil(*first), 0u);
  EXPECT_EQ(follower.UsesUntil(*second), 1u);
  follower.Enter(order.moments[1]);
  follower.Enter(order.moments[2]);
  const PlanStep* due = follower.TakeDueStep();
  ASSERT_TRUE(due != nullptr && due->chunk == 2);
  EXPECT_EQ(follower.UsesUntil(*due), 0u) << "the operator waits for it";
}

TEST(PassFollower, SimulatesOnceForEachStateInWhichPassesOfAKindBegin) {
  const AccessSchedule order{{{.chunks = {0}}, {.chunks = {1}}, {.chunks = {2}}, {.chunks = {0}}}};
  PassFollower follower({true, true, true}, 2);
  follower.Declare(PassKind::kTrain, order);
  follower.Declare(PassKind::kEvaluation, order);
  const Plan* plan = nullptr;
  for (int step = 0; step < 6; ++step) {
    ASSERT_TRUE(follower.Begin(PassKind::kTrain, {}).ok());
    if (step > 0) {
      EXPECT_EQ(follower.plan(), plan);
    }
    plan = follower.plan();
    if (step % 2 == 0) continue;
    ASSERT_TRUE(follower.Begin(PassKind::kEvaluation, {}).ok());
    ASSERT_TRUE(follower.Begin(PassKind::kTrain, {0, 2}).ok());  // on what the evaluation left
    EXPECT_NE(follower.plan(), plan);
  }
  EXPECT_EQ(follower.simulations(), 3u);
  follower.Declare(PassKind::kTrain, order);
  ASSERT_TRUE(follower.Begin(PassKind::kTrain, {}).ok());
  EXPECT_EQ(follower.simulations(), 4u) << "a new order has plans of its own";
}

TEST(ParameterCache, TrainsRightInTheSmallestRcacheAndInLargerOnes) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    ToyConfig config = Toy(seed, 8, 1);
    config.micro_batches = 1 + seed % 3;
    config.cache.prefetch_depth = seed % 4;
    config.cache.separate_while_recording = seed % 2 == 0;
    const uint64_t smallest = SmallestFor(config);
    for (uint64_t blocks = smallest; blocks < smallest + 4; ++blocks) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", blocks " + std::to_string(blocks));
      config.blocks = blocks;
      const ToyResult result = RunToy(config);
      ASSERT_NO_FATAL_FAILURE(ExpectGood(result));
      EXPECT_EQ(result.ranks[0].followed, (std::vector<bool>{false, true, true, true}));
      EXPECT_EQ(result.ranks[0].after_step.back().deviations, 0u);
    }
  }
}

TEST(ParameterCache, RanksDecideAlikeWhateverTheTimes) {
  for (uint32_t world = 2; world <= 4; ++world) {
    std::string decisions;
    for (uint64_t delays = 1; delays <= 3; ++delays) {
      ToyConfig config = Toy(world, 8, world);
      config.micro_batches = 2;
      config.blocks = SmallestFor(config) + 1;
      config.delay_seed = delays;
      config.delay_max = 9;
      const ToyResult result = RunToy(config);
      ASSERT_NO_FATAL_FAILURE(ExpectGood(result));
      for (const ToyRankResult& rank : result.ranks) {
        EXPECT_EQ(rank.decisions, result.ranks[0].decisions);
        EXPECT_EQ(rank.schedule, result.ranks[0].schedule);
      }
      EXPECT_TRUE(decisions.empty() || decisions == result.ranks[0].decisions)
          << "other delays, other decisions";
      decisions = result.ranks[0].decisions;
    }
  }
}

TEST(ParameterCache, FetchesAndBytesAreThoseOfThePlanAndTheExhaustiveOptimum) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    for (const uint64_t depth : {0u, 1u, 5u}) {
      ToyConfig config = Toy(seed, 5, 2);
      config.evaluate = false;
      config.cache.prefetch_depth = depth;
      config.blocks = SmallestFor(config);
      const ToyResult result = RunToy(config);
      ASSERT_NO_FATAL_FAILURE(ExpectGood(result));
      const ToyRankResult& rank = result.ranks[0];
      const Plan plan =
          BeladySimulate(rank.schedule, {EvictableMask(result.layout), config.blocks, {}}).value();
      const CacheCounters step = LastStep(rank, 3);
      EXPECT_EQ(step.misses + step.prefetches, plan.fetches);
      EXPECT_EQ(step.misses + step.prefetches,
                Exhaustive(rank.schedule, static_cast<uint32_t>(config.blocks)).Fewest());
      EXPECT_EQ(step.submits, plan.submits);
      const StepTraffic traffic = TrafficOf(plan, result.layout);
      EXPECT_EQ(step.bytes_h2d, traffic.bytes_h2d);
      EXPECT_EQ(step.bytes_d2h, traffic.bytes_d2h);
      if (depth == 0) {
        EXPECT_EQ(step.prefetches, 0u);
      } else {
        EXPECT_GT(step.prefetches, step.misses);
      }
    }
  }
}

// With evaluations in between, a step may begin with chunks that the evaluation has left in the
// rCache: the plan counts on them.
TEST(ParameterCache, BytesAreThoseOfThePlanAlsoBehindEvaluations) {
  ToyConfig config = Toy(3, 8, 2);
  config.model.notes[5].multi_use = true;
  config.micro_batches = 2;
  config.blocks = SmallestFor(config) + 3;
  const ToyResult result = RunToy(config);
  ASSERT_NO_FATAL_FAILURE(ExpectGood(result));
  for (const ToyRankResult& rank : result.ranks) {
    EXPECT_EQ(rank.planned[0].bytes_h2d, 0u);  // recorded
    for (size_t step = 2; step < 4; ++step) {
      EXPECT_EQ(rank.after_step[step].bytes_h2d - rank.before_step[step].bytes_h2d,
                rank.planned[step].bytes_h2d);
      EXPECT_EQ(rank.after_step[step].bytes_d2h - rank.before_step[step].bytes_d2h,
                rank.planned[step].bytes_d2h);
      EXPECT_GT(rank.planned[step].bytes_d2h, 0u);
    }
    // Followed steps with equal starts move equal bytes.
    EXPECT_EQ(rank.planned[2].bytes_h2d, rank.planned[3].bytes_h2d);
  }
}

TEST(ParameterCache, TooSmallForAKnownOrderNamesTheNumberThatWorks) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    ToyConfig config = Toy(seed, 6, 1);
    config.blocks = 1000;
    const ToyResult whole = RunToy(config);
    config.declared = whole.ranks[0].schedule;
    const uint64_t smallest = SmallestRcache(config.declared, EvictableMask(whole.layout));
    ASSERT_GE(smallest, 2u);
    config.blocks = smallest - 1;
    const ToyRankResult refused = RunToy(config).ranks[0];
    EXPECT_EQ(refused.status.id(), ErrorId::kRcacheTooSmall);
    const uint64_t bytes = whole.layout.RcacheBytes(0, smallest);
    EXPECT_EQ(refused.smallest_bytes, bytes);
    EXPECT_NE(refused.status.what().find(std::to_string(bytes) + " bytes"), std::string::npos)
        << refused.status.Format();
    config.blocks = smallest;
    const ToyResult works = RunToy(config);
    ASSERT_NO_FATAL_FAILURE(ExpectGood(works));
    EXPECT_EQ(works.ranks[0].followed, std::vector<bool>(4, true));
  }
}

TEST(ParameterCache, TooSmallForOneOperatorIsNamedWhileRecording) {
  ToyConfig config = Toy(3, 4, 1);
  config.model.forward = {{0}, {1, 4, 7, 10}, {2}, {3}};  // one operator over four chunks
  config.model.no_gradient.assign(config.model.notes.size(), true);
  for (const auto& notes : config.model.forward) {
    for (const uint32_t note : notes) config.model.no_gradient[note] = false;
  }
  config.layout.chunk_bytes = 160 * 4;
  config.blocks = 2;
  const ToyResult refused = RunToy(config);
  ASSERT_EQ(refused.ranks[0].status.id(), ErrorId::kRcacheTooSmall)
      << refused.ranks[0].status.Format();
  const uint64_t named = (refused.ranks[0].smallest_bytes - refused.layout.ResidentBytes(0)) /
                         refused.layout.BlockBytes();
  EXPECT_GT(named, 2u);
  config.blocks = named;
  ASSERT_NO_FATAL_FAILURE(ExpectGood(RunToy(config)));
  config.blocks = named - 1;
  EXPECT_EQ(RunToy(config).ranks[0].status.id(), ErrorId::kRcacheTooSmall);
}

TEST(ParameterCache, ResidentMultiUseParametersAndMissingGradients) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    ToyConfig config = Toy(seed, 8, 1 + seed % 3);
    config.micro_batches = 2;
    config.model.notes[5].multi_use = true;
    config.model.fires_twice[5] = true;  // used again in layer 3
    config.model.no_gradient[7] = config.model.no_gradient[8] = config.model.no_gradient[20] = true;
    config.cache.separate_while_recording = seed % 2 == 0;
    config.layout.resident = {"p3"};
    config.blocks = SmallestFor(config);
    const ToyResult result = RunToy(config);
    ASSERT_NO_FATAL_FAILURE(ExpectGood(result));
    EXPECT_EQ(result.ranks[0].after_step.back().deviations, 0u) << seed;
    EXPECT_TRUE(result.ranks[0].followed.back());
  }
}

TEST(ParameterCache, UndeclaredSecondUseIsFoundWhileRecording) {
  ToyConfig config = Toy(2, 8, 2);
  config.micro_batches = 2;
  config.model.fires_twice[5] = true;
  config.blocks = SmallestFor(config);
  const ToyResult result = RunToy(config);
  ASSERT_NO_FATAL_FAILURE(ExpectGood(result));
  EXPECT_EQ(result.ranks[0].after_step.back().deviations, 0u);
  uint64_t borrowed = 0;
  for (const Moment& moment : result.ranks[0].schedule.moments)
    borrowed += moment.kind == MomentKind::kBorrow;
  EXPECT_EQ(borrowed, 2u);  // its chunk, once a micro-batch
}

TEST(ParameterCache, SecondGradientOverTheFirstNamesTheParameter) {
  ToyConfig config = Toy(2, 8, 1);
  config.model.fires_twice[5] = true;
  config.cache.separate_while_recording = false;
  config.blocks = 1000;
  const ToyResult result = RunToy(config);
  EXPECT_EQ(result.ranks[0].status.id(), ErrorId::kTensorStateIllegal);
  EXPECT_NE(result.ranks[0].status.what().find("p5"), std::string::npos)
      << result.ranks[0].status.what();
}

TEST(ParameterCache, APassThatLeavesTheOrderGoesOnAndLearnsTheNewOne) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    ToyConfig config = Toy(seed, 8, 1 + seed % 2);
    config.steps = 5;
    config.blocks = SmallestFor(config);
    config.shuffle_second_half = true;
    config.blocks = std::max(config.blocks, SmallestFor(config));
    const ToyResult result = RunToy(config);
    ASSERT_NO_FATAL_FAILURE(ExpectGood(result));
    EXPECT_EQ(result.ranks[0].after_step[1].deviations, 0u);
    EXPECT_EQ(result.ranks[0].after_step[2].deviations, 1u);
    // Evaluation deviated once, too.
    EXPECT_EQ(result.ranks[0].after_step[4].deviations, result.ranks[0].after_step[3].deviations);
    for (const ToyRankResult& rank : result.ranks)
      EXPECT_EQ(rank.decisions, result.ranks[0].decisions);
  }
}

TEST(ParameterCache, DataGroupsGatherAndReduceAmongThemselves) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    ToyConfig config = Toy(seed, 10, 4);
    config.model = MakeToyModel(seed, 10, 3);
    config.micro_batches = 2;
    config.layout.data_groups = {{0, 1, 2, 3}, {0, 1}, {2, 3}};
    config.blocks = SmallestFor(config) + 1;
    const ToyResult result = RunToy(config);
    ASSERT_NO_FATAL_FAILURE(ExpectGood(result));
    EXPECT_EQ(result.ranks[0].decisions, result.ranks[1].decisions);
    EXPECT_EQ(result.ranks[2].decisions, result.ranks[3].decisions);
  }
}

TEST(ParameterCache, TheOrderOfUpdatesIsDeclaredOnceItIsKnown) {
  ToyConfig config = Toy(1, 8, 1);
  config.blocks = 1000;
  const ToyResult result = RunToy(config);
  EXPECT_EQ(result.declared, FirstUseOrder(result.ranks[0].schedule));
  EXPECT_EQ(result.declared.size(), result.layout.chunks.size());
  // An order that was foreseen is followed from the first step on, and nothing is recorded.
  config.declared = result.ranks[0].schedule;
  const ToyResult foreseen = RunToy(config);
  ASSERT_NO_FATAL_FAILURE(ExpectGood(foreseen));
  EXPECT_TRUE(foreseen.ranks[0].followed.front());
  EXPECT_EQ(foreseen.declared, result.declared);
}

TEST(ParameterCache, HitsMissesAndLatePrefetchesAddUp) {
  ToyConfig config = Toy(4, 8, 1);
  config.evaluate = false;
  config.blocks = SmallestFor(config) + 1;
  config.delay_max = 50;
  const CacheCounters slow = RunToy(config).ranks[0].after_step.back();
  EXPECT_GT(slow.late_prefetches, 0u);
  EXPECT_LE(slow.late_prefetches, slow.prefetches);
  EXPECT_GT(slow.wait_ns, 0u);
  EXPECT_GT(slow.evictions, 0u);
  config.cache.prefetch_depth = 0;
  const CacheCounters plain = RunToy(config).ranks[0].after_step.back();
  EXPECT_EQ(plain.prefetches, 0u);
  EXPECT_EQ(plain.ahead, 0u);
  EXPECT_GT(slow.ahead, 0u);
  EXPECT_LE(slow.ahead, slow.prefetches) << "some are for gradients";
  EXPECT_EQ(plain.hits + plain.misses, slow.hits + slow.ahead + slow.misses);
}

}  // namespace parameter_cache_test
}  // namespace tidepool::trainer
