// What stages use, and where their gradients are added up, against sets and counts made by other
// means; the rCache of a pipelined run; what cannot be a pipeline.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/units.h"
#include "trainer/advice/pipeline_run.h"
#include "trainer/model/gpt_shape.h"
#include "trainer/run/job.h"
#include "trainer/run/run_plan.h"

namespace tidepool::trainer {
namespace stage_plan_test {

using ::testing::HasSubstr;

GptShape Shape() {
  return {.name = "deep", .vocab = 64, .context = 16, .layers = 8, .heads = 2, .hidden = 32};
}

RunOptions Options(std::vector<uint32_t> ends, const char* dtype = "bf16") {
  RunOptions options;
  options.model.dtype = dtype;
  options.data.context = 16;
  options.memory.chunk_size = "16KiB";
  options.training.micro_batches = 3;
  options.pipeline.stages = std::to_string(ends.size());
  options.pipeline.ends = std::move(ends);
  return options;
}

RunPlan PlanOf(const RunOptions& options) {
  Result<RunPlan> plan = MakeRunPlan(Shape(), options, 1, 0, "stages");
  EXPECT_TRUE(plan.ok()) << plan.status().Format();
  return std::move(plan).value();
}

// By stage, the evictable chunks in which a parameter of one of its layers lies.
std::vector<std::set<ChunkId>> ChunksOf(const ChunkLayout& layout,
                                        const std::vector<uint32_t>& ends) {
  std::vector<std::set<ChunkId>> chunks(ends.size());
  for (const ParameterPlace& parameter : layout.parameters) {
    const auto [first, last] = GptBlocksOf(parameter.name, Shape());
    for (const uint32_t layer : {first, last}) {
      size_t stage = 0;
      while (layer >= ends[stage]) ++stage;
      if (!layout.chunks[parameter.chunk].resident) chunks[stage].insert(parameter.chunk);
    }
  }
  return chunks;
}

TEST(GptBlocks, BelongToTheirNumberAndTheEndsToTheFirstAndTheLast) {
  using Pair = std::pair<uint32_t, uint32_t>;
  const GptShape shape{"twelve", 256, 16, 12, 2, 8};
  EXPECT_EQ(GptBlocksOf("wte.weight", shape), (Pair{0, 11}));
  EXPECT_EQ(GptBlocksOf("wpe.weight", shape), (Pair{0, 0}));
  EXPECT_EQ(GptBlocksOf("h.10.mlp.c_fc.weight", shape), (Pair{10, 10}));
  EXPECT_EQ(GptBlocksOf("ln_f.bias", shape), (Pair{11, 11}));
}

class StagePlans : public ::testing::TestWithParam<std::vector<uint32_t>> {};

TEST_P(StagePlans, CountBlocksAndRoomsAsSetsOfChunksDo) {
  for (const char* dtype : {"fp32", "bf16"}) {
    const RunPlan plan = PlanOf(Options(GetParam(), dtype));
    const StagePlan& stages = *plan.stages;
    const auto chunks = ChunksOf(plan.layout, GetParam());
    size_t one = 0, two = 0, open_most = 0;
    for (size_t stage = 0; stage < chunks.size(); ++stage) {
      std::set<ChunkId> both = chunks[stage];
      one = std::max(one, both.size());
      if (stage + 1 < chunks.size())
        both.insert(chunks[stage + 1].begin(), chunks[stage + 1].end());
      two = std::max(two, both.size());
      // Backward has come to this stage: sums of its chunks are open, and no others.
      open_most = std::max(open_most, chunks[stage].size());
    }
    EXPECT_EQ(stages.blocks_of_one, one);
    EXPECT_EQ(stages.blocks_of_two, two);
    EXPECT_EQ(stages.rooms, open_most);

    uint64_t elements = 0, resident = 0;
    for (ChunkId chunk = 0; chunk < plan.layout.chunks.size(); ++chunk) {
      elements += plan.layout.chunks[chunk].elements;
      if (!plan.layout.chunks[chunk].resident) continue;
      EXPECT_EQ(stages.sum_at[chunk], resident);
      resident += RoundUp(plan.layout.chunks[chunk].elements * 4, kPageBytes);
    }
    EXPECT_EQ(stages.sum_bytes, elements * 4);
    EXPECT_EQ(stages.rooms_at, resident);
    EXPECT_EQ(stages.tail_bytes, resident + open_most * stages.room_bytes);
    EXPECT_EQ(plan.rcache.bytes,
              plan.layout.RcacheBytes(0, plan.rcache.blocks) + stages.tail_bytes);
    EXPECT_GE(plan.rcache.blocks, two) << "a share is raised to two stages";
    EXPECT_EQ(plan.spec.rcache_bytes, plan.rcache.bytes);
    EXPECT_EQ(plan.spec.micro_batches, 1U);
    EXPECT_EQ(plan.spec.sums_gradients, plan.layout.dtype == DType::kF32 ? 0U : 1U);
  }
}

INSTANTIATE_TEST_SUITE_P(Cuts, StagePlans,
                         ::testing::Values(std::vector<uint32_t>{8}, std::vector<uint32_t>{3, 8},
                                           std::vector<uint32_t>{1, 2, 7, 8},
                                           std::vector<uint32_t>{1, 2, 3, 4, 5, 6, 7, 8}));

TEST(StagePlan, OneMicroBatchIsHandedInAsItIs) {
  RunOptions options = Options({4, 8});
  options.training.micro_batches = 1;
  const RunPlan plan = PlanOf(options);
  EXPECT_EQ(plan.spec.sums_gradients, 0U);
  EXPECT_EQ(plan.stages->sum_bytes, plan.layout.TotalBytes());
}

TEST(StagedRcache, ASizeThatHasNoRoomForAStageNamesTheSmallestThatHas) {
  RunOptions options = Options({4, 8});
  const RunPlan whole = PlanOf(options);
  const uint64_t least =
      whole.layout.RcacheBytes(0, whole.stages->blocks_of_one) + whole.stages->tail_bytes;
  options.memory.rcache = std::to_string(least);
  EXPECT_EQ(PlanOf(options).rcache.blocks, whole.stages->blocks_of_one);

  for (const uint64_t bytes : {least - 1, uint64_t{4096}}) {
    options.memory.rcache = std::to_string(bytes);
    const Status refused = MakeRunPlan(Shape(), options, 1, 0, "stages").status();
    EXPECT_EQ(refused.id(), ErrorId::kRcacheTooSmall);
    EXPECT_THAT(refused.fix(), HasSubstr("--rcache " + std::to_string(least)));
    EXPECT_THAT(refused.fix(), HasSubstr("more stages"));
  }
}

// Ranks take the stages in turn, the last rank first.
RunOptions OnRanks(RunOptions options, uint32_t ranks) {
  for (uint32_t stage = 0; stage < options.pipeline.ends.size(); ++stage)
    options.pipeline.ranks.push_back(ranks - 1 - stage % ranks);
  return options;
}

RunPlan PlanOfRank(const RunOptions& options, uint32_t world, Rank rank) {
  Result<RunPlan> plan = MakeRunPlan(Shape(), options, world, rank, "stages");
  EXPECT_TRUE(plan.ok()) << plan.status().Format();
  return std::move(plan).value();
}

std::vector<std::string> NamesIn(const ChunkLayout& layout) {
  std::vector<std::string> names;
  for (const ParameterPlace& parameter : layout.parameters) names.push_back(parameter.name);
  return names;
}

TEST_P(StagePlans, OfSeveralRanksHaveEachChunkWithTheRankOfItsStage) {
  const RunPlan alone = PlanOf(Options(GetParam()));
  for (uint32_t world = 2; world <= std::min<size_t>(GetParam().size(), 4); ++world) {
    const RunOptions options = OnRanks(Options(GetParam()), world);
    uint64_t sums = 0, total = 0;
    for (Rank rank = 0; rank < world; ++rank) {
      const RunPlan plan = PlanOfRank(options, world, rank);
      const StagePlan& stages = *plan.stages;
      // The norm's terms are added in this order.
      EXPECT_EQ(NamesIn(plan.layout), NamesIn(alone.layout));
      for (ChunkId chunk = 0; chunk < plan.layout.chunks.size(); ++chunk) {
        EXPECT_EQ(plan.layout.IsMember(chunk, rank), stages.Owns(stages.of_chunk[chunk].first));
        const bool at_both_ends = plan.layout.chunks[chunk].multi_use;
        EXPECT_EQ(stages.of_chunk[chunk].first == stages.of_chunk[chunk].last, !at_both_ends);
      }
      EXPECT_EQ(plan.rcache.bytes, PlanOfRank(options, world, 0).rcache.bytes);
      EXPECT_GE(plan.rcache.blocks, stages.blocks_of_one);
      EXPECT_LE(plan.layout.RcacheBytes(rank, plan.rcache.blocks) + stages.tail_bytes,
                plan.rcache.bytes);
      sums += stages.sum_bytes;
      total = 2 * plan.layout.TotalBytes();  // fp32 in place of bf16
    }
    EXPECT_EQ(sums, total);
  }
}

TEST(StagedRcache, ASizeIsRefusedByWhatTheRankNeedsThatNeedsMost) {
  // The ranks' stages are of 1 and of 7 layers.
  RunOptions options = OnRanks(Options({7, 8}), 2);
  options.memory.rcache = "4096";
  const Status refused = MakeRunPlan(Shape(), options, 2, 0, "stages").status();
  EXPECT_EQ(refused.id(), ErrorId::kRcacheTooSmall);
  EXPECT_EQ(MakeRunPlan(Shape(), options, 2, 1, "stages").status().fix(), refused.fix());
  options.memory.rcache = "100%";
  const RunPlan needy = PlanOfRank(options, 2, 1);
  EXPECT_THAT(
      refused.fix(),
      HasSubstr("--rcache " + std::to_string(LeastStagedRcache(needy.layout, *needy.stages))));
}

TEST(PipelineRun, WhatCannotBeOneIsRefusedWithAWayOut) {
  struct Case {
    const char* stages;
    uint32_t world;
    const char* what;
    const char* fix;
  };
  for (const Case& each :
       {Case{"9", 1, "9 stages, and the model has 8 layers", "at most --pipeline 8"},
        Case{"2", 3, "2 stages for 3 ranks", "at least --pipeline 3"},
        Case{"auto", 9, "9 ranks, and the model has 8 layers", "at most 8 ranks"},
        Case{"many", 1, "\"many\" is no number", "--pipeline auto"}}) {
    RunOptions options;
    options.pipeline.stages = each.stages;
    const Status refused = CheckPipelineRun(options, Shape(), each.world);
    EXPECT_EQ(refused.id(), ErrorId::kUsageError) << each.stages;
    EXPECT_THAT(refused.what(), HasSubstr(each.what));
    EXPECT_THAT(refused.fix(), HasSubstr(each.fix));
  }

  RunOptions options;
  EXPECT_TRUE(CheckPipelineRun(options, Shape(), 4).ok()) << "no pipeline is asked for";
  options.pipeline.stages = "8";
  for (const uint32_t world : {1, 2, 8})
    EXPECT_TRUE(CheckPipelineRun(options, Shape(), world).ok());
  options.memory.rcache = "auto";
  EXPECT_THAT(CheckPipelineRun(options, Shape(), 1).what(), HasSubstr("--rcache auto"));
  options.memory.rcache = "25%";
  options.adapters.rank = 8;
  EXPECT_THAT(CheckPipelineRun(options, Shape(), 1).what(), HasSubstr("--lora-rank"));
  options = RunOptions();
  options.pipeline.topology_file = "machine.json";
  EXPECT_THAT(CheckPipelineRun(options, Shape(), 1).what(), HasSubstr("--topology says nothing"));
}

TEST(PipelineRun, ItsRanksAreOnTheHostOfOneMachine) {
  RunOptions options;
  options.pipeline.stages = "4";
  RankPlace place;
  place.world = place.local_world = 2;
  EXPECT_TRUE(CheckPipelinePlace(options, place, /*is_gpu=*/false).ok());
  EXPECT_THAT(CheckPipelinePlace(options, place, /*is_gpu=*/true).fix(), HasSubstr("--device cpu"));
  place.local_world = 1;
  const Status refused = CheckPipelinePlace(options, place, /*is_gpu=*/false);
  EXPECT_EQ(refused.id(), ErrorId::kUsageError);
  EXPECT_THAT(refused.why(), HasSubstr("1 of 2 ranks"));
}

}  // namespace stage_plan_test
}  // namespace tidepool::trainer
