// Adapters over a frozen base: the same training as with everything resident in plain LibTorch, and
// a base that nobody changes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/trainer/parity/rig.h"

namespace tidepool::trainer {
namespace lora_test {

std::string BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class Lora : public ::testing::Test {
 protected:
  Lora() {
    options_.run.training.steps = 20;
    options_.run.adapters.base = "/tmp/tidepool-lora-" + std::to_string(getpid()) + ".safetensors";
    options_.run.adapters.rank = 4;
    options_.run.adapters.targets = "all";
    WriteBase(options_.run.adapters.base, options_);
    base_ = BytesOf(options_.run.adapters.base);
  }
  ~Lora() override {
    EXPECT_TRUE(BytesOf(options_.run.adapters.base) == base_)
        << "the file of the base was written to";
    std::filesystem::remove(options_.run.adapters.base);
  }

  static void ExpectLike(const RigResult& a, const RigResult& b, double loss_bound,
                         double weight_bound) {
    ASSERT_EQ(a.losses.size(), b.losses.size());
    for (size_t i = 0; i < a.losses.size(); ++i)
      EXPECT_NEAR(a.losses[i], b.losses[i], loss_bound * b.losses[i]) << "step " << i + 1;
    EXPECT_LT(LargestDifference(a, b), weight_bound);
  }
  // Eight layers, four adapters of two matrices in each: nothing else is trained or saved.
  static void ExpectAdaptersAlone(const RigResult& result) {
    EXPECT_EQ(result.weights.size(), 8U * 4 * 2);
    for (const auto& [name, values] : result.weights)
      EXPECT_NE(name.find(".lora_"), std::string::npos) << name;
    EXPECT_TRUE(result.base_unchanged);
  }

  RigOptions options_ = DefaultRig();
  std::string base_;
};

TEST_F(Lora, TwentyStepsInFp32MatchPlainTraining) {
  options_.run.optimizer.clip = 0;
  const RigResult ours = TrainThroughServer(options_), plain = TrainPlain(options_);
  ExpectLike(ours, plain, 1e-5, 1e-4);
  ExpectAdaptersAlone(ours);
  EXPECT_LT(ours.losses.back(), ours.losses.front() - 0.1)
      << "nothing was learnt, so the comparison says little";
}

// The stated bounds of 16-bit training (parity_test.cpp).
TEST_F(Lora, TwentyStepsInBf16MatchPlainTraining) {
  options_.run.model.dtype = "bf16";
  options_.run.training.micro_batches = 2;
  const RigResult ours = TrainThroughServer(options_), plain = TrainPlain(options_);
  ExpectLike(ours, plain, 1e-2, 5 * options_.run.training.learning_rate);
  ExpectAdaptersAlone(ours);
}

TEST_F(Lora, BitsDoNotDependOnTheRcacheOrOnRecomputation) {
  options_.run.memory.rcache = "100%";
  const RigResult whole = TrainThroughServer(options_);
  options_.run.memory.rcache = "20%";
  const RigResult small = TrainThroughServer(options_);
  options_.run.model.activation_checkpointing = true;
  options_.run.memory.prefetch = false;
  const RigResult again = TrainThroughServer(options_);
  ExpectAdaptersAlone(small);
  EXPECT_TRUE(SameBits(whole, small));
  EXPECT_TRUE(SameBits(whole, again));
  EXPECT_EQ(whole.losses, small.losses);
  ASSERT_GT(small.fetches.back(), whole.fetches.back())
      << "both held everything, so the comparison says little";
  for (size_t step = 1; step < small.moved.size(); ++step) {
    EXPECT_EQ(small.moved[step].bytes_h2d, small.planned[step].bytes_h2d) << "step " << step + 1;
    EXPECT_EQ(small.moved[step].bytes_d2h, small.planned[step].bytes_d2h) << "step " << step + 1;
  }
}

TEST_F(Lora, TwoRanksMatchOneRankWithTheSameGlobalBatch) {
  const RigResult one = TrainThroughServer(options_);
  options_.world = 2;
  const RigResult two = TrainThroughServer(options_);
  ExpectLike(two, one, 1e-5, 1e-5);
  ExpectAdaptersAlone(two);
}

}  // namespace lora_test
}  // namespace tidepool::trainer
