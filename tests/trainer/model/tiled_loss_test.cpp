// The loss in tiles of the vocabulary against LibTorch's own, which has all logits at once.
#include "trainer/model/loss/tiled_loss.h"

#include <cmath>
#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <ATen/ATen.h>

#include "trainer/model/gpt.h"
#include "trainer/profile/step_profile.h"

namespace tidepool::trainer {
namespace tiled_loss_test {

constexpr int64_t kRows = 29, kHidden = 24, kVocab = 61;

// Made from a formula, so that each test has the same numbers.
at::Tensor Waves(int64_t rows, int64_t columns, double step, at::ScalarType type) {
  return at::arange(rows * columns, at::kFloat).mul_(step).sin_().view({rows, columns}).to(type);
}

struct Head {
  explicit Head(at::ScalarType type, double scale = 1)
      : hidden(Waves(kRows, kHidden, 0.37, type).mul_(scale).requires_grad_(true)),
        head(Waves(kVocab, kHidden, 0.53, type).requires_grad_(true)) {}

  at::Tensor Plain() const {
    return at::cross_entropy_loss(at::linear(hidden, head).to(at::kFloat), targets);
  }
  at::Tensor Tiled(int64_t tiles) const { return TiledCrossEntropy(hidden, head, targets, tiles); }

  at::Tensor hidden, head;
  // Each entry of some tile's border is a target once.
  at::Tensor targets = at::arange(kRows).mul(17).remainder(kVocab);
};

double Furthest(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kFloat) - b.to(at::kFloat)).abs().max().item<double>();
}

void ExpectLikePlain(at::ScalarType type, double scale, double bound) {
  Head plain(type, scale);
  const at::Tensor loss = plain.Plain();
  (loss * 3.0).backward();
  for (const int64_t tiles : {int64_t{1}, int64_t{2}, int64_t{7}, kVocab - 1, kVocab}) {
    SCOPED_TRACE(std::string(c10::toString(type)) + ", " + std::to_string(tiles) + " tiles");
    Head tiled(type, scale);
    const at::Tensor got = tiled.Tiled(tiles);
    EXPECT_NEAR(got.item<float>(), loss.item<float>(), 2e-6 * std::max(1.0F, loss.item<float>()));
    (got * 3.0).backward();
    EXPECT_EQ(tiled.head.grad().scalar_type(), type);
    EXPECT_LE(Furthest(tiled.head.grad(), plain.head.grad()), bound);
    EXPECT_LE(Furthest(tiled.hidden.grad(), plain.hidden.grad()), bound);
  }
  EXPECT_GT(plain.head.grad().abs().max().item<double>(), 50 * bound) << "the bound says something";
}

TEST(TiledLoss, IsThePlainLossWithItsGradients) {
  ExpectLikePlain(at::kFloat, 1, 1e-6);
  ExpectLikePlain(at::kBFloat16, 1, 2e-3);
}

// Logits of thousands are rounded to 1e-4, and a row of 300 counts that in the head's gradient.
TEST(TiledLoss, BearsLogitsWhoseExponentialsOverflow) {
  ExpectLikePlain(at::kFloat, 300, 1e-2);
}

TEST(TiledLoss, LeavesOutWhatAsksForNoGradient) {
  Head frozen(at::kFloat), plain(at::kFloat);
  frozen.head.requires_grad_(false);
  frozen.Tiled(4).backward();
  plain.Plain().backward();
  EXPECT_FALSE(frozen.head.grad().defined());
  EXPECT_LE(Furthest(frozen.hidden.grad(), plain.hidden.grad()), 1e-6);

  const at::NoGradGuard no_gradients;
  EXPECT_FALSE(plain.Tiled(4).requires_grad());
}

TEST(TiledLoss, RefusesMoreTilesThanEntries) {
  const Head head(at::kFloat);
  EXPECT_THROW(head.Tiled(kVocab + 1), c10::Error);
  EXPECT_THROW(head.Tiled(0), c10::Error);
}

StepProfile ProfiledIn(uint32_t tiles, DType dtype, bool tied) {
  ProfileTask task;
  task.shape = {"wide", 32768, 256, 2, 4, 64};
  task.shape.form = ModelForm::kLlama;
  task.shape.llama = {.kv_heads = 4, .head_size = 16, .mlp = 128, .tied = tied};
  task.dtype = dtype;
  task.sequences = 4;
  task.tokens = 256;
  task.vocab_tiles = tiles;
  Result<StepProfile> profile = ProfileStep(task);
  EXPECT_TRUE(profile.ok()) << profile.status().Format();
  return profile.ok() ? std::move(profile).value() : StepProfile();
}

// The head's own gradient, 2 or 4 MiB, is in both.
TEST(TiledLoss, TakesTheMemoryOfOneTilesLogits) {
  const double logits = 4.0 * 256 * 32768;
  for (const bool tied : {false, true}) {
    const auto bytes = [tied](uint32_t tiles, DType dtype) {
      return static_cast<double>(ProfiledIn(tiles, dtype, tied).activation_bytes);
    };
    EXPECT_GT(bytes(1, DType::kF32), 12 * logits);
    EXPECT_LT(bytes(16, DType::kF32), 1.5 * logits);
    EXPECT_GT(bytes(1, DType::kBF16), 12 * logits);
    EXPECT_LT(bytes(16, DType::kBF16), 1.5 * logits);
  }
}

// Four products of the head instead of three: a product has 2 R V C operations.
TEST(TiledLoss, CostsOneMoreProductOfTheHead) {
  const double product = 2.0 * 4 * 256 * 32768 * 64;
  EXPECT_NEAR(
      ProfiledIn(16, DType::kF32, false).arithmetic - ProfiledIn(1, DType::kF32, false).arithmetic,
      product, product * 1e-9);
}

}  // namespace tiled_loss_test
}  // namespace tidepool::trainer
