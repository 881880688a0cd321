// A model of Llama's form through a whole memory server: the same training as in plain LibTorch,
// and bits that do not depend on how the work is cut.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>

#include "tests/trainer/parity/rig.h"
#include "trainer/model/tiles/tile_places.h"

namespace tidepool::trainer {
namespace llama_parity_test {

RigOptions LlamaRig(bool tied = false) {
  RigOptions options = DefaultRig();
  options.shape.name = "deep-llama";
  options.shape.form = ModelForm::kLlama;
  options.shape.heads = 4;
  options.shape.llama = {.kv_heads = 2, .head_size = 8, .mlp = 80, .tied = tied};
  options.run.training.steps = 20;
  options.run.memory.chunk_size = "32KiB";  // a table of its own is no resident chunk
  return options;
}

void ExpectLike(const RigResult& a, const RigResult& b, double loss_bound, double weight_bound) {
  ASSERT_EQ(a.losses.size(), b.losses.size());
  for (size_t i = 0; i < a.losses.size(); ++i)
    EXPECT_NEAR(a.losses[i], b.losses[i], loss_bound * b.losses[i]) << "step " << i + 1;
  EXPECT_LT(LargestDifference(a, b), weight_bound);
  EXPECT_LT(a.losses.back(), a.losses.front() - 0.1) << "nothing was learnt";
}

TEST(LlamaParity, TwentyStepsMatchPlainTraining) {
  for (const bool tied : {false, true}) {
    SCOPED_TRACE(tied ? "tied" : "a head of its own");
    RigOptions options = LlamaRig(tied);
    options.run.optimizer.clip = 0;
    ExpectLike(TrainThroughServer(options), TrainPlain(options), 1e-5, 1e-4);
  }
}

// The stated bounds of 16-bit training (parity_test.cpp).
TEST(LlamaParity, TwentyStepsInBf16MatchPlainTraining) {
  RigOptions options = LlamaRig();
  options.run.model.dtype = "bf16";
  options.run.training.micro_batches = 2;
  ExpectLike(TrainThroughServer(options), TrainPlain(options), 1e-2,
             5 * options.run.training.learning_rate);
}

TEST(LlamaParity, BitsDoNotDependOnRcacheChunksOrRecomputation) {
  RigOptions options = LlamaRig();
  const RigResult baseline = TrainThroughServer(options);
  options.run.memory.rcache = "15%";
  EXPECT_TRUE(SameBits(TrainThroughServer(options), baseline));
  options.run.model.activation_checkpointing = true;
  EXPECT_TRUE(SameBits(TrainThroughServer(options), baseline));
  options.run.memory.chunk_size = "64KiB";
  options.run.memory.rcache = "50%";
  EXPECT_TRUE(SameBits(TrainThroughServer(options), baseline));
}

TEST(LlamaParity, TilesOfTheVocabularyMatchPlainTrainingWhateverTheRcache) {
  for (const bool tied : {false, true}) {
    SCOPED_TRACE(tied ? "tied" : "a head of its own");
    RigOptions options = LlamaRig(tied);
    options.run.optimizer.clip = 0;
    options.run.model.vocab_tiles = 5;
    const RigResult tiled = TrainThroughServer(options);
    ExpectLike(tiled, TrainPlain(options), 1e-5, 1e-4);
    options.run.memory.rcache = "15%";
    EXPECT_TRUE(SameBits(TrainThroughServer(options), tiled));
  }
}

// With the tiles of a layer put together.
RigResult Joined(RigResult result, uint64_t tile_elements) {
  GptShape shape = LlamaRig().shape;
  std::map<std::string, std::map<uint64_t, std::vector<float>>> parts;
  for (auto& [name, values] : result.weights) {
    shape.tile_elements = tile_elements;
    if (!name.starts_with("model.")) shape.form = ModelForm::kGpt2;
    const TilePlace place = PlaceOfTile(name, shape);
    parts[place.whole][place.begin] = std::move(values);
  }
  result.weights.clear();
  for (auto& [name, tiles] : parts) {
    for (auto& [begin, values] : tiles) {
      std::vector<float>& whole = result.weights[name];
      whole.insert(whole.end(), values.begin(), values.end());
    }
  }
  return result;
}

// The largest parameter of a block is a tenth of what it was, and so is the smallest chunk.
TEST(LlamaParity, TilesOfLinearLayersMatchPlainTrainingWhateverTheRcache) {
  for (const bool is_llama : {true, false}) {
    SCOPED_TRACE(is_llama ? "Llama's form" : "GPT-2's form");
    RigOptions options = is_llama ? LlamaRig() : DefaultRig();
    options.run.training.steps = 20;
    options.run.optimizer.clip = 0;
    const RigResult plain = TrainPlain(options), whole = TrainThroughServer(options);
    options.run.model.tile_linear = "2KiB";
    options.run.memory.chunk_size = "auto";
    const RigResult tiled = TrainThroughServer(options);
    // GPT-2's biases of keys have no gradient but rounding, which Adam makes as large as any.
    ExpectLike(Joined(tiled, 512), whole, 2e-6, is_llama ? 2e-6 : 1e-5);
    EXPECT_GT(tiled.weights.size(), plain.weights.size() + 20);
    ExpectLike(Joined(tiled, 512), plain, 1e-5, 1e-4);

    options.run.memory.rcache = "15%";
    options.run.model.activation_checkpointing = true;
    EXPECT_TRUE(SameBits(TrainThroughServer(options), tiled));
    options.world = 2;
    const RigResult two = TrainThroughServer(options);
    ExpectLike(Joined(two, 512), plain, 1e-4, 1e-3);
  }
}

TEST(LlamaParity, RanksMoveWhatThePlanSays) {
  RigOptions options = LlamaRig();
  options.world = 2;
  options.run.training.steps = 4;
  const RigResult result = TrainThroughServer(options);
  for (size_t step = 1; step < result.moved_groups.size(); ++step)
    EXPECT_EQ(result.moved_groups[step], result.planned_groups[step]);
  options.run.memory.rcache = "100%";
  EXPECT_TRUE(SameBits(TrainThroughServer(options), result));
}

TEST(LlamaParity, AdaptersMatchPlainTrainingAndLeaveTheirBase) {
  RigOptions options = LlamaRig();
  options.run.adapters.base = "/tmp/tidepool-llama-" + std::to_string(getpid()) + ".safetensors";
  options.run.adapters.rank = 4;
  options.run.adapters.targets = "all";
  options.run.optimizer.clip = 0;
  WriteBase(options.run.adapters.base, options);
  const RigResult ours = TrainThroughServer(options), plain = TrainPlain(options);
  ExpectLike(ours, plain, 1e-5, 1e-4);
  EXPECT_EQ(ours.weights.size(), 8U * 7 * 2);
  EXPECT_TRUE(ours.base_unchanged);
  std::filesystem::remove(options.run.adapters.base);
}

}  // namespace llama_parity_test
}  // namespace tidepool::trainer
