// Blocks with other experts each through a whole memory server: shared by four ranks, by two and by
// none, beside an MLP, and what each of their groups moves.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/trainer/parity/grouped_reference.h"
#include "tests/trainer/parity/rig.h"
#include "trainer/model/moe/moe_layers.h"

namespace tidepool::trainer {
namespace moe_layers_parity_test {

// A pyramid, as PR-MoE has it: fewer experts in the first blocks, and an MLP beside some (DeepSpeed
// MoE, Rajbhandari et al. 2022, section 4.1).
RigOptions ThreeDegrees() {
  RigOptions options = DefaultRig();
  options.world = 4;
  options.shape = {"pyramid", 256, 8, 3, 2, 16};
  options.shape.form = ModelForm::kLlama;
  options.shape.llama = {.kv_heads = 1, .head_size = 8, .mlp = 24};
  options.shape.moe_layers.resize(3);
  // With auxiliary losses ranks would learn otherwise than one process: each has its own tokens.
  options.shape.moe_layers[0] = {.experts = 3, .width = 24, .aux = 0};
  options.shape.moe_layers[1] = {.experts = 4, .width = 24, .ep = 2, .aux = 0, .residual = true};
  options.shape.moe_layers[2] = {.experts = 8, .width = 24, .ep = 4, .aux = 0};

  options.run.memory.chunk_size = "4KiB";
  options.run.data.batch = 8;
  options.run.data.context = 8;
  options.run.training.steps = 200;
  options.run.optimizer.clip = 0;
  options.run.training.learning_rate = 1e-3F;
  // A gradient that is all rounding makes no step of a whole learning rate.
  options.run.optimizer.eps = 1e-6F;
  return options;
}

RigOptions Shortly(uint64_t steps) {
  RigOptions options = ThreeDegrees();
  options.run.training.steps = steps;
  return options;
}

TEST(MoeLayers, ThreeDegreesOfSharingLearnAsOneProcess) {
  RigOptions options = ThreeDegrees();
  const RigResult ours = TrainThroughServer(options), plain = TrainPlain(options);
  ASSERT_EQ(ours.losses.size(), 200U);
  for (size_t i = 0; i < ours.losses.size(); ++i)
    EXPECT_NEAR(ours.losses[i], plain.losses[i], 2e-6 * plain.losses[i]) << "step " << i + 1;
  EXPECT_LT(LargestDifference(ours, plain), 2e-6);
  EXPECT_LT(ours.losses.back(), ours.losses.front() - 0.1) << "nothing was learnt";

  const RigResult grouped = TrainGrouped(options);
  EXPECT_TRUE(SameBits(ours, grouped)) << LargestDifference(ours, grouped);
}

TEST(MoeLayers, ARunThatIsRepeatedHasTheSameBits) {
  RigOptions options = Shortly(12);
  const RigResult once = TrainThroughServer(options);
  options.run.memory.rcache = "30%";
  const RigResult again = TrainThroughServer(options);
  EXPECT_TRUE(SameBits(once, again));
  EXPECT_EQ(once.losses, again.losses);
}

// Rank 1 spoils each gradient that it hands in. What it does not share learns as before.
TEST(MoeLayers, AGradientIsReducedOverItsOwnGroupAlone) {
  RigOptions options = Shortly(1);
  options.leaves_out = false;
  const RigResult sound = TrainThroughServer(options);
  options.corrupted_rank = 1;
  const RigResult spoilt = TrainThroughServer(options);

  size_t of_others = 0;
  for (const auto& [name, values] : sound.weights) {
    const bool shared = HasParameter(options.shape, name, 1);
    EXPECT_EQ(values != spoilt.weights.at(name), shared) << name;
    of_others += !shared;
  }
  EXPECT_EQ(of_others, 3 * (2 + 6U)) << "three weights of two and of six experts";
}

uint64_t ShardBytes(const ChunkLayout& layout, size_t group) {
  uint64_t sum = 0;
  for (ChunkId chunk = 0; chunk < layout.chunks.size(); ++chunk) {
    if (layout.chunks[chunk].data_group == group) sum += layout.ShardBytes(chunk);
  }
  return sum;
}

// ZeRO-2's volume is 2 M between ranks: a gather and a reduce-scatter of each parameter (Elixir v1,
// section VI-B), of which a rank of G sends (G - 1) / G. With experts, M and G are a group's.
TEST(MoeLayers, EachGroupMovesTheVolumeOfZero2) {
  RigOptions options = Shortly(3);
  options.leaves_out = false;
  options.run.memory.plan = "zero2";
  options.run.memory.rcache = "100%";
  const RigResult shared = TrainThroughServer(options);
  for (MoeSizes& block : options.shape.moe_layers) block.ep = 1;
  const RigResult whole = TrainThroughServer(options);

  uint64_t sent = 0, sent_whole = 0;
  for (const RigResult* result : {&shared, &whole}) {
    for (size_t step = 1; step < result->moved_groups.size(); ++step) {
      EXPECT_EQ(result->moved_groups[step], result->planned_groups[step]);
      for (size_t group = 0; group < result->moved_groups[step].size(); ++group) {
        const std::vector<Rank>& ranks = result->layout.data_groups[group];
        const bool is_member = std::count(ranks.begin(), ranks.end(), 0U) > 0;
        const uint64_t shards = is_member ? ShardBytes(result->layout, group) : 0;
        const GroupTraffic& moved = result->moved_groups[step][group];
        EXPECT_EQ(moved.gathered, (ranks.size() - 1) * shards) << group;
        EXPECT_EQ(moved.scattered, moved.gathered) << group;
        EXPECT_EQ(moved.fetched, shards) << group;
        EXPECT_EQ(moved.handed_in, shards) << group;
      }
    }
    (result == &shared ? sent : sent_whole) = SumOf(result->moved_groups.back()).between_ranks();
  }
  EXPECT_EQ(shared.layout.data_groups.size(), 1 + 2 + 4U);
  EXPECT_EQ(whole.layout.data_groups.size(), 1U);

  // An expert of block 1 is summed over two ranks, which have two each, and one of block 2 over
  // none: of 3/4 of the bytes of 4 + 8 experts, 1/2 of those of 2 remain. The rest is the same.
  const uint64_t expert = 3 * 24 * 16 * sizeof(float);
  EXPECT_EQ(sent_whole - sent, 2 * (3 * (4 + 8) * expert / 4 - 2 * expert / 2));
}

}  // namespace moe_layers_parity_test
}  // namespace tidepool::trainer
