// A step that goes stage by stage has the bits of one that takes micro-batch after micro-batch
// through the whole model: losses, norms, weights. And it moves what the theory says.
//
// TIDEPOOL_ALL_STAGES: all combinations in place of a covering set.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/trainer/pipeline/staged_ranks.h"
#include "trainer/pipeline/stage_links.h"
#include "trainer/pipeline/staged_step.h"

namespace tidepool::trainer {
namespace {

// Weights at most twice a step, and each sum of gradients once, whatever the micro-batches.
void ExpectTheory(const Outcomes& outcomes) {
  const ChunkLayout& layout = outcomes.plan.layout;
  uint64_t weights = 0, gradients = 0;
  for (ChunkId chunk = 0; chunk < layout.chunks.size(); ++chunk) {
    weights += layout.ChunkBytes(chunk);
    gradients +=
        layout.chunks[chunk].elements *
        (outcomes.plan.stages->micro_batches > 1 ? 4 : BytesOf(layout.chunks[chunk].dtype));
  }
  Result<Plan> plan =
      BeladySimulate(outcomes.order, {EvictableMask(layout), outcomes.plan.rcache.blocks, {}});
  ASSERT_TRUE(plan.ok()) << plan.status().Format();
  for (const uint32_t times : plan->fetches_of_chunk) EXPECT_LE(times, 2U);

  const StagePlan& stages = *outcomes.plan.stages;
  EXPECT_EQ(outcomes.bytes.boundary, uint64_t{stages.stages() - 1} * stages.micro_batches *
                                         kSequences * kTokens * Shape().hidden *
                                         BytesOf(layout.dtype));
  for (uint64_t step = 0; step < kSteps; ++step) {
    EXPECT_EQ(outcomes.moved[step].bytes_d2h, gradients) << step;
    EXPECT_LE(outcomes.moved[step].bytes_h2d, 2 * weights) << step;
    EXPECT_EQ(outcomes.moved[step].bytes_h2d, outcomes.planned[step].fetched) << step;
    EXPECT_EQ(outcomes.moved[step].bytes_d2h, outcomes.planned[step].handed_in) << step;
  }
}

// Stage s multiplies by s + 2: what is called, in which order, and what is kept.
TEST(StagedStep, GoesThroughAStageForAllMicroBatchesAndKeepsInputsAlone) {
  constexpr uint32_t kStages = 3, kBatches = 2;
  const at::Tensor weight = torch::ones({4}, torch::requires_grad());
  std::vector<std::string> order;
  StagedWork work{.stages = kStages, .micro_batches = kBatches, .gradient_scale = 0.5};
  work.stage = [&](uint32_t stage, uint32_t micro_batch, const at::Tensor& input) {
    const at::Tensor x = stage == 0 ? weight * static_cast<double>(micro_batch + 1) : input;
    const at::Tensor y = x * static_cast<double>(stage + 2);
    return stage + 1 == kStages ? y.sum() : y;
  };
  work.begins = [&](bool backward, uint32_t stage, uint32_t micro_batch) {
    order.push_back((backward ? "b" : "f") + std::to_string(stage) + "." +
                    std::to_string(micro_batch));
  };
  work.ended = [&](uint32_t stage) { order.push_back("end " + std::to_string(stage)); };

  const StagedResult result = RunStagedStep(work);
  EXPECT_EQ(order,
            (std::vector<std::string>{"f0.0", "f0.1", "f1.0", "f1.1", "b2.0", "b2.1", "end 2",
                                      "b1.0", "b1.1", "end 1", "b0.0", "b0.1", "end 0"}));
  ASSERT_EQ(result.losses.size(), kBatches);
  EXPECT_EQ(result.losses[1].item<float>(), 2 * 4 * 2 * 3 * 4);
  EXPECT_EQ(weight.grad()[0].item<float>(), (1 + 2) * 2 * 3 * 4 * 0.5);
  EXPECT_EQ(result.boundary_bytes, (kStages - 1) * kBatches * 4 * sizeof(float));

  order.clear();
  work.goes_on = [&] { return order.size() < 3; };
  RunStagedStep(work);
  EXPECT_EQ(order.size(), 3U) << "a step that has failed computes nothing more";
}

TEST(StageLinks, JoinRanksWhoseStagesFollowEachOtherAndTheEnds) {
  const auto names = [](const StageCuts& cuts) {
    std::vector<std::string> all;
    for (const LinkSpec& link : LinksOf(cuts)) {
      EXPECT_TRUE(
          link.name.ends_with(std::to_string(link.from) + " to " + std::to_string(link.to)));
      all.push_back(link.name);
    }
    return all;
  };
  EXPECT_TRUE(names({.ends = {1, 2, 3}, .ranks = {}}).empty());
  using Names = std::vector<std::string>;
  EXPECT_EQ(names({.ends = {1, 2, 3}, .ranks = {1, 0, 1}}),
            (Names{"stages 1 to 0", "stages 0 to 1"}))
      << "rank 1 has both ends of the model";
  EXPECT_EQ(names({.ends = {1, 2, 3}, .ranks = {2, 0, 1}}),
            (Names{"stages 2 to 0", "stages 0 to 2", "stages 0 to 1", "stages 1 to 0",
                   "ends 2 to 1", "ends 1 to 2"}));
  EXPECT_EQ(names({.ends = {1, 2}, .ranks = {0, 1}, .columns = 2, .width = 2, .is_tied = false}),
            (Names{"stages 0 to 1", "stages 1 to 0", "stages 2 to 3", "stages 3 to 2"}))
      << "columns have no links between them, and a head of its own needs none";
}

std::vector<Combination> Combinations() {
  if (std::getenv("TIDEPOOL_ALL_STAGES") == nullptr) {
    // Each pair of values of two columns occurs.
    return {{1, 2, "fp32", false, true},      {2, 1, "bf16", true, true, true},
            {2, 4, "bf16", false, false},     {3, 3, "fp32", true, false, true},
            {4, 2, "bf16", true, true, true}, {5, 4, "fp32", true, true},
            {8, 1, "fp32", false, false},     {8, 3, "bf16", false, true, true},
            {2, 2, "fp16", true, false, true}};
  }
  std::vector<Combination> all;
  for (uint32_t stages = 1; stages <= 8; ++stages) {
    for (uint32_t micro_batches = 1; micro_batches <= 4; ++micro_batches) {
      for (const char* dtype : {"fp32", "bf16", "fp16"}) {
        for (uint32_t bits = 0; bits < 8; ++bits)
          all.push_back(
              {stages, micro_batches, dtype, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0});
      }
    }
  }
  return all;
}

TEST(StagedRun, HasTheBitsOfOneMicroBatchAfterTheOtherAndMovesWhatTheTheorySays) {
  for (const Combination& each : Combinations()) {
    SCOPED_TRACE(::testing::PrintToString(each));
    const Outcomes staged = Train(Staged(each));
    ASSERT_EQ(staged.losses.size(), kSteps * each.micro_batches);
    ExpectSameBits(staged, Train(OptionsOf(each)));
    ExpectTheory(staged);
    if (HasFailure()) return;
  }
}

std::vector<Combination> CombinationsOfRanks() {
  if (std::getenv("TIDEPOOL_ALL_STAGES") == nullptr) {
    return {{2, 1, "fp32", true, false, false, 2},
            {3, 4, "bf16", true, true, true, 2},
            {3, 3, "bf16", true, false, false, 3},
            {5, 2, "bf16", false, true, true, 3},
            {4, 4, "fp32", false, true, true, 4},
            {8, 3, "bf16", true, false, true, 4},
            {8, 2, "fp32", true, true, false, 2},
            {4, 2, "bf16", true, false, true, 2, 1, Form::kTiedLlama},
            {3, 2, "bf16", true, true, false, 3, 1, Form::kLlama}};
  }
  std::vector<Combination> all;
  for (const Form form : {Form::kTiedLlama, Form::kLlama}) {
    for (uint32_t stages = 2; stages <= 4; ++stages) {
      for (uint32_t micro_batches = 1; micro_batches <= 3; ++micro_batches)
        all.push_back({stages, micro_batches, stages % 2 == 0 ? "bf16" : "fp32", true,
                       micro_batches == 2, stages == 3, stages, 1, form});
    }
  }

  for (uint32_t stages = 2; stages <= 8; ++stages) {
    for (uint32_t ranks = 2; ranks <= std::min(stages, 4U); ++ranks) {
      for (uint32_t micro_batches = 1; micro_batches <= 4; ++micro_batches) {
        for (const char* dtype : {"fp32", "bf16"}) {
          for (uint32_t bits = 0; bits < 8; ++bits)
            all.push_back({stages, micro_batches, dtype, (bits & 1) != 0, (bits & 2) != 0,
                           (bits & 4) != 0, ranks});
        }
      }
    }
  }
  return all;
}

// Each rank moves what its plan says, and all together what one rank would; between them go all
// boundary tensors, there and back, since neighbouring stages are on two ranks.
void ExpectTheoryOfRanks(const std::vector<Outcomes>& ranks) {
  const ChunkLayout& layout = ranks.front().plan.layout;
  const StagePlan& plan = *ranks.front().plan.stages;
  uint64_t handed_in = 0, fetched = 0, sums = 0, boundary = 0, linked = 0;
  for (const Outcomes& rank : ranks) {
    for (uint64_t step = 0; step < kSteps; ++step) {
      EXPECT_EQ(rank.moved[step].bytes_h2d, rank.planned[step].fetched) << step;
      EXPECT_EQ(rank.moved[step].bytes_d2h, rank.planned[step].handed_in) << step;
    }
    fetched += rank.moved.back().bytes_h2d;
    handed_in += rank.moved.back().bytes_d2h;
    boundary += rank.bytes.boundary;
    linked += rank.bytes.linked;
    EXPECT_EQ(rank.bytes.linked, rank.bytes.linked_theory);
  }

  for (ChunkId chunk = 0; chunk < layout.chunks.size(); ++chunk)
    sums += layout.chunks[chunk].elements * BytesOf(plan.SumType(layout, chunk));
  EXPECT_EQ(handed_in, sums);
  EXPECT_LE(fetched, 2 * layout.TotalBytes());
  const uint64_t element = BytesOf(layout.dtype);
  EXPECT_EQ(boundary, uint64_t{plan.stages() - 1} * plan.micro_batches * kSequences * kTokens *
                          Shape().hidden * element);
  const bool apart =
      plan.cuts.is_tied && plan.cuts.RankOf(0) != plan.cuts.RankOf(plan.stages() - 1);
  EXPECT_EQ(linked,
            2 * boundary +
                (apart ? (1 + plan.micro_batches) * Shape().vocab * Shape().hidden * element : 0));
}

TEST(StagedRun, SeveralRanksHaveTheBitsOfOneProcess) {
  for (const Combination& each : CombinationsOfRanks()) {
    SCOPED_TRACE(::testing::PrintToString(each));
    const std::vector<Outcomes> ranks = TrainRanks(Staged(each), each.ranks, Shape(each.form));
    const Outcomes staged = AsOne(ranks);
    ASSERT_EQ(staged.losses.size(), kSteps * each.micro_batches);
    ExpectSameBits(staged, Train(OptionsOf(each), Shape(each.form)));
    ExpectTheoryOfRanks(ranks);
    if (HasFailure()) return;
  }
}

// Where one stage fills the rCache: forward fetches all stages, backward all but the last, which is
// still there; what is always resident comes once.
TEST(StagedRun, FetchesAChunkOncePerVisitOfItsStage) {
  const Outcomes outcomes = Train(Staged({8, 4, "fp32", true, false, true}));
  const ChunkLayout& layout = outcomes.plan.layout;
  const StagePlan& stages = *outcomes.plan.stages;
  uint64_t visits = 0, at_the_turn = 0;
  for (ChunkId chunk = 0; chunk < layout.chunks.size(); ++chunk) {
    const bool turns = stages.of_chunk[chunk].last + 1 == stages.stages();
    visits += layout.chunks[chunk].resident || turns ? 1 : 2;
    at_the_turn += !layout.chunks[chunk].resident && turns;
  }
  // The turn may leave room for some of the stage before, which then are not fetched again.
  const uint64_t kept = outcomes.plan.rcache.blocks - at_the_turn;
  EXPECT_LE(outcomes.chunks_fetched, visits);
  EXPECT_GE(outcomes.chunks_fetched + kept, visits);

  const Outcomes ordinary = Train([] {
    RunOptions options = OptionsOf({8, 4, "fp32"});
    options.memory.rcache = "12%";
    return options;
  }());
  EXPECT_GT(ordinary.moved[1].bytes_h2d, 3 * outcomes.moved[1].bytes_h2d)
      << "a chunk comes twice a step, and not twice a micro-batch";
}

}  // namespace
}  // namespace tidepool::trainer
