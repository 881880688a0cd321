// Frozen chunks in the rCache: fetched and evicted like all others, kept through new versions,
// never handed in.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/trainer/cache/toy_run.h"
#include "trainer/plan/replay.h"

namespace tidepool::trainer {
namespace frozen_chunks_test {

ToyConfig Toy(uint64_t seed, uint32_t world) {
  ToyConfig config;
  config.model = MakeToyModel(seed, 8, 1);
  FreezeEveryThird(&config.model, static_cast<uint32_t>(seed % 3));
  config.layout.world = world;
  config.layout.chunk_bytes = 192 * 4;  // a few parameters each
  config.cache.seed = seed;
  config.steps = 5;
  return config;
}

void ExpectGoodAndAlike(const ToyResult& result) {
  ExpectGood(result);
  for (const ToyRankResult& rank : result.ranks)
    EXPECT_EQ(rank.decisions, result.ranks[0].decisions);
}

TEST(FrozenChunks, AreReadRightByAllRanksInTheSmallestRcacheAndInLargerOnes) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    ToyConfig config = Toy(seed, 1 + seed % 2);
    config.micro_batches = 1 + seed % 3;
    config.cache.prefetch_depth = seed % 4;
    config.cache.separate_while_recording = seed % 2 == 0;
    const uint64_t smallest = SmallestFor(config);
    for (uint64_t blocks = smallest; blocks < smallest + 4; ++blocks) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", blocks " + std::to_string(blocks));
      config.blocks = blocks;
      const ToyResult result = RunToy(config);
      ASSERT_NO_FATAL_FAILURE(ExpectGoodAndAlike(result));
      EXPECT_EQ(result.ranks[0].followed, (std::vector<bool>{false, true, true, true, true}));
      EXPECT_EQ(result.ranks[0].after_step.back().deviations, 0u);
    }
  }
}

// What a step fetches and hands in, and what its plan said.
void ExpectStep(const ToyResult& run, size_t step, uint64_t fetches, uint64_t submits) {
  const ToyRankResult& rank = run.ranks[0];
  const CacheCounters &before = rank.before_step[step], &after = rank.after_step[step];
  EXPECT_EQ(after.misses + after.prefetches - before.misses - before.prefetches, fetches)
      << "step " << step;
  EXPECT_EQ(after.submits - before.submits, submits) << "step " << step;
  if (!rank.followed[step]) return;
  EXPECT_EQ(after.bytes_h2d - before.bytes_h2d, rank.planned[step].bytes_h2d) << "step " << step;
  EXPECT_EQ(after.bytes_d2h - before.bytes_d2h, rank.planned[step].bytes_d2h) << "step " << step;
}

TEST(FrozenChunks, StayThroughNewVersionsWhereThereIsRoomAndAreNeverHandedIn) {
  ToyConfig config = Toy(2, 1);
  config.blocks = 1000;
  config.evaluate = false;
  config.cache.prefetch_depth = 0;  // a chunk is not fetched before the pass that needs it
  const ToyResult run = RunToy(config);
  ASSERT_NO_FATAL_FAILURE(ExpectGoodAndAlike(run));
  const uint64_t trained = run.layout.TrainedChunks(), all = run.layout.chunks.size();
  ASSERT_GT(all, trained + 2);
  ExpectStep(run, 0, all, trained);
  for (size_t step = 1; step < config.steps; ++step) ExpectStep(run, step, trained, trained);
  EXPECT_EQ(run.declared.size(), trained);
  for (const ChunkId chunk : run.declared)
    EXPECT_LT(chunk, trained) << "the server updates no frozen chunk";
}

TEST(FrozenChunks, GiveUpTheirBlocksLikeOthersWhereThereIsNoRoom) {
  ToyConfig config = Toy(2, 1);
  config.evaluate = false;
  config.blocks = SmallestFor(config);
  const ToyResult run = RunToy(config);
  ASSERT_NO_FATAL_FAILURE(ExpectGoodAndAlike(run));
  const CacheCounters &before = run.ranks[0].before_step.back(),
                      &after = run.ranks[0].after_step.back();
  EXPECT_GT(after.evictions, before.evictions);
  EXPECT_GT(after.misses + after.prefetches - before.misses - before.prefetches,
            run.layout.TrainedChunks());
  EXPECT_EQ(after.bytes_h2d - before.bytes_h2d, run.ranks[0].planned.back().bytes_h2d);
}

TEST(FrozenChunks, AreRefusedAGradientByName) {
  ToyConfig config = Toy(3, 1);
  const auto frozen = std::find_if(config.model.notes.begin(), config.model.notes.end(),
                                   [](const ParameterNote& note) { return note.frozen; });
  config.model.no_gradient[static_cast<size_t>(frozen - config.model.notes.begin())] = false;
  const Status ended = RunToy(config).ranks[0].status;
  EXPECT_EQ(ended.id(), ErrorId::kTensorStateIllegal) << ended.Format();
  EXPECT_NE(ended.Format().find("parameter " + frozen->name + " got a gradient, but it is frozen"),
            std::string::npos)
      << ended.Format();
}

}  // namespace frozen_chunks_test
}  // namespace tidepool::trainer
