// A model with experts through a whole memory server: as in plain LibTorch, in bits that do not
// depend on the rCache, the ranks' plans or recomputation, and with experts that no token goes to.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tests/trainer/parity/rig.h"

namespace tidepool::trainer {
namespace moe_parity_test {

RigOptions MoeRig(uint32_t every = 1) {
  RigOptions options = DefaultRig();
  options.shape = {"deep-moe", 256, 16, 4, 4, 32};
  options.shape.form = ModelForm::kLlama;
  options.shape.llama = {.kv_heads = 2, .head_size = 8, .mlp = 64};
  options.shape.moe = {.every = every, .experts = 4, .top_k = 2, .width = 48, .z = 1e-3F};
  options.run.memory.chunk_size = "32KiB";
  options.run.training.steps = 20;
  return options;
}

// Twelve tokens a step for 64 experts of one token each: most have none, others in each step.
RigOptions MostlyEmpty() {
  RigOptions options = MoeRig(2);
  options.shape.moe = {.every = 2, .experts = 64, .top_k = 1, .width = 8};
  options.run.data.batch = 3;
  options.run.data.context = 4;
  return options;
}

void ExpectLike(const RigResult& a, const RigResult& b) {
  ASSERT_EQ(a.losses.size(), b.losses.size());
  for (size_t i = 0; i < a.losses.size(); ++i)
    EXPECT_NEAR(a.losses[i], b.losses[i], 1e-5 * b.losses[i]) << "step " << i + 1;
  EXPECT_LT(LargestDifference(a, b), 1e-4);
}

TEST(MoeParity, TwentyStepsMatchPlainTraining) {
  for (const uint32_t every : {1U, 2U}) {
    SCOPED_TRACE(every);
    RigOptions options = MoeRig(every);
    options.run.optimizer.clip = 0;
    const RigResult ours = TrainThroughServer(options);
    ExpectLike(ours, TrainPlain(options));
    EXPECT_LT(ours.losses.back(), ours.losses.front() - 0.1) << "nothing was learnt";
  }
}

// The reference updates an expert without tokens with a gradient of zeros, too: weights decay and
// moments fade.
TEST(MoeParity, ExpertsWithoutTokensAreUpdatedAsWithAGradientOfZero) {
  RigOptions options = MostlyEmpty();
  options.run.optimizer.clip = 0;
  ExpectLike(TrainThroughServer(options), TrainPlain(options));
}

TEST(MoeParity, BitsDoNotDependOnTheRcacheOrOnRecomputation) {
  RigOptions options = MoeRig();
  options.shape.moe.capacity = 1;
  const RigResult baseline = TrainThroughServer(options);
  options.run.memory.rcache = "20%";
  EXPECT_TRUE(SameBits(TrainThroughServer(options), baseline));
  options.run.model.activation_checkpointing = true;
  EXPECT_TRUE(SameBits(TrainThroughServer(options), baseline));
}

// Ranks route their own tokens, so their experts are empty in different steps: they still meet in
// the same collectives.
TEST(MoeParity, RanksOfOtherRoutingsMoveWhatThePlanSays) {
  for (const char* plan : {"zero3", "ddp"}) {
    SCOPED_TRACE(plan);
    RigOptions options = MostlyEmpty();
    options.world = 3;
    options.run.training.steps = 5;
    options.run.memory.plan = plan;
    options.run.memory.rcache = options.run.memory.plan == "zero3" ? "20%" : "100%";
    const RigResult result = TrainThroughServer(options), again = TrainThroughServer(options);
    EXPECT_TRUE(SameBits(result, again));
    for (size_t step = 1; step < result.moved_groups.size(); ++step)
      EXPECT_EQ(result.moved_groups[step], result.planned_groups[step]);
  }
}

uint64_t ShardBytesOf(const ChunkLayout& layout, bool of_units) {
  uint64_t sum = 0;
  for (ChunkId chunk = 0; chunk < layout.chunks.size(); ++chunk) {
    if ((layout.chunks[chunk].unit != 0) == of_units && layout.IsMember(chunk, 0))
      sum += layout.ShardBytes(chunk);
  }
  return sum;
}

// With a block for each chunk nothing is fetched twice in a micro-batch: rank 0 moves its shard of
// all that has no unit, and of each expert that some rank has tokens for.
TEST(MoeParity, TheBytesAreThoseOfTheExpertsWithTokens) {
  for (const uint32_t ep : {1U, 3U}) {
    SCOPED_TRACE(ep);
    RigOptions options = MostlyEmpty();
    options.world = 3;
    options.shape.moe.experts = 63;
    options.shape.moe.ep = ep;
    options.run.memory.chunk_size = "8KiB";
    options.run.memory.plan = "zero2";
    options.run.memory.rcache = "100%";
    options.run.training.micro_batches = 2;
    options.run.training.steps = 5;
    const RigResult result = TrainThroughServer(options);

    const uint64_t experts = 2 * 63 / ep, of_expert = ShardBytesOf(result.layout, true) / experts,
                   dense = 2 * ShardBytesOf(result.layout, false);
    for (size_t step = 1; step < result.moved.size(); ++step) {
      const uint64_t theory = dense + result.used_experts[step] * of_expert;
      EXPECT_EQ(result.moved[step].bytes_h2d, theory) << step;
      EXPECT_EQ(result.moved[step].bytes_d2h, theory) << step;
      EXPECT_EQ(result.moved_groups[step], result.planned_groups[step]);
      EXPECT_EQ(result.zeros[step], 2 * experts - result.used_experts[step]);
      EXPECT_GT(result.zeros[step], experts / 2);
    }
  }
}

TEST(MoeParity, BitsAreThoseOfARunThatFetchesAllExperts) {
  RigOptions options = MostlyEmpty();
  options.run.memory.chunk_size = "8KiB";
  options.run.training.steps = 12;
  for (const char* rcache : {"20%", "100%"}) {
    for (const bool recomputes : {false, true}) {
      SCOPED_TRACE(rcache);
      options.world = recomputes ? 2 : 1;
      options.run.data.batch = recomputes ? 2 : 3;
      options.run.memory.rcache = rcache;
      options.run.model.activation_checkpointing = recomputes;
      options.run.training.micro_batches = recomputes ? 1 : 2;
      options.evaluate_first = recomputes;
      options.leaves_out = false;
      const RigResult all = TrainThroughServer(options);
      options.leaves_out = true;
      const RigResult routed = TrainThroughServer(options);
      EXPECT_TRUE(SameBits(routed, all));
      EXPECT_EQ(routed.losses, all.losses);
      EXPECT_LT(routed.moved.back().bytes_h2d, all.moved.back().bytes_h2d / 2);
      for (size_t step = 1; step < routed.moved_groups.size(); ++step)
        EXPECT_EQ(routed.moved_groups[step], routed.planned_groups[step]);
    }
  }
}

}  // namespace moe_parity_test
}  // namespace tidepool::trainer
