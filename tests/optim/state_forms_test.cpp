// Smaller forms of the states against fp32 states: what is exact, and how far off the others may
// be.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "base/formats/split_float.h"
#include "optim/kernels/float_mode.h"
#include "optim/kernels/kernels.h"
#include "optim/kernels/state_scalar.h"
#include "optim/update_rule.h"
#include "tests/optim/random_arrays.h"

namespace tidepool::optim {
namespace state_forms_test {

TEST(SplitFloat, EveryPatternComesBack) {
  // A step of 257 meets every upper and every lower half; the nightly run takes all 2^32.
  const char* all = std::getenv("TIDEPOOL_ALL_PATTERNS");
  const uint64_t step = all != nullptr && std::string_view(all) == "1" ? 1 : 257;
  uint64_t wrong = 0, ties = 0;
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += step) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(bits));
    const SplitFloat halves = Split(value);
    wrong += std::bit_cast<uint32_t>(Join(halves.high, halves.rest)) != bits ? 1 : 0;
    if (std::isnan(value)) continue;
    // Rounding to nearest even differs on exact ties alone.
    const bool tie = (bits & 0xFFFF) == 0x8000;
    ties += halves.high != NarrowToBf16(value) ? 1 : 0;
    wrong += halves.high != NarrowToBf16(value) && !tie ? 1 : 0;
  }
  EXPECT_EQ(wrong, 0U);
  EXPECT_GT(ties, 0U);
  EXPECT_LE(ties, 32'640U);  // ties whose upper half is even, NaNs aside
}

TEST(SplitFloat, AWeightThatIsNoNumberStaysNone) {
  for (const uint32_t bits : {0x7F800001U, 0x7FFFFFFFU, 0xFFFFFFFFU, 0xFFC00000U}) {
    const SplitFloat halves = SplitWeight(std::bit_cast<float>(bits));
    EXPECT_TRUE(std::isnan(WidenBf16(halves.high)));
    EXPECT_TRUE(std::isnan(Join(halves.high, halves.rest)));
  }
  EXPECT_EQ(SplitWeight(1.0F).high, 0x3F80);
}

TEST(StochasticRounding, IsRightOnAverageAndNeverFurtherThanOneStep) {
  SplitMix64 random(3);
  for (int i = 0; i < 40; ++i) {
    const float value = RandomFloat(random, 1.0F);
    double sum = 0;
    constexpr int kTimes = 20'000;
    for (int k = 0; k < kTimes; ++k) {
      const float rounded =
          WidenBf16(NarrowToBf16Randomly(value, Random16Of(99, static_cast<uint64_t>(k))));
      ASSERT_LT(std::fabs(rounded - value), std::fabs(value) / 127);
      sum += static_cast<double>(rounded);
    }
    // The mean of 20,000 lies within 5 deviations: a step is at most |value| / 128, its deviation
    // half of that.
    EXPECT_NEAR(sum / kTimes, static_cast<double>(value),
                5 * std::fabs(static_cast<double>(value)) / 256 / std::sqrt(kTimes));
  }
}

TEST(StochasticRounding, BitsDifferByStepParameterAndElement) {
  const OptimizerSpec spec;
  const uint64_t key = RandomKey(RoundingSeedOf(spec, "a"), 1);
  EXPECT_NE(key, RandomKey(RoundingSeedOf(spec, "a"), 2));
  EXPECT_NE(key, RandomKey(RoundingSeedOf(spec, "b"), 1));
  int ones = 0;
  for (uint64_t i = 0; i < 10'000; ++i) ones += std::popcount(Random16Of(key, i));
  EXPECT_NEAR(ones, 80'000, 5 * 200) << "5 deviations of 160,000 fair coins";
}

TEST(Codes8, AreNoFurtherOffThanOneCode) {
  SplitMix64 random(4);
  for (int i = 0; i < 100'000; ++i) {
    const float scale = 0.001F + static_cast<float>(random.Unit());
    const float x = RandomFloat(random, 1.0F);
    const auto bits = static_cast<uint32_t>(random.Below(65536));
    const int8_t code = MomentumCode(x * scale, InverseScale(scale), bits);
    // One code is 1/127 of z; dx/dz = (1 + |x|)^2 / 2 is at most 2 over the code's width.
    ASSERT_NEAR(MomentumOf(code, scale), x * scale,
                scale * (1 + std::fabs(x)) * (1 + std::fabs(x)) / 2 / 127 * 1.05F + 1e-6F);
    const float root = std::fabs(x) * scale;
    ASSERT_NEAR(RootOf(RootCode(root, InverseScale(scale), bits), scale), root,
                scale / 255 * 1.001F);
  }
}

TEST(Codes8, KeepTheLargestZeroAndTheSmallest) {
  EXPECT_EQ(MomentumOf(MomentumCode(0.25F, InverseScale(0.25F), 0), 0.25F), 0.25F);
  EXPECT_EQ(MomentumOf(MomentumCode(-0.25F, InverseScale(0.25F), 65535), 0.25F), -0.25F);
  EXPECT_EQ(MomentumCode(0, InverseScale(0.25F), 65535), 0);
  EXPECT_EQ(RootCode(0, InverseScale(1), 65535), 0);
  EXPECT_EQ(RootCode(1e-30F, InverseScale(1), 0), 1) << "a denominator does not vanish by rounding";
  EXPECT_EQ(RootOf(0, INFINITY), 0.0F);
}

// Runs one job of `count` parameters in a form of states.
class SmallRun {
 public:
  SmallRun(const OptimizerSpec& spec, uint64_t count)
      : spec_(spec), count_(count), weights_(RandomFloats(1, count, 0.5F)) {
    momentum_.resize(MomentBytes(spec.states, count));
    variance_.resize(momentum_.size());
    param16_.resize(count);
    rest_.resize(count);
    for (uint64_t i = 0; i < count && IsSplit(spec.states); ++i) {
      const SplitFloat halves = Split(weights_[i]);
      param16_[i] = halves.high;
      rest_[i] = halves.rest;
    }
  }
  void Step(uint64_t step, const std::vector<uint16_t>& gradient) {
    UpdateSpan span{IsSplit(spec_.states) ? static_cast<void*>(rest_.data()) : weights_.data()};
    span.momentum = NeedsMomentum(spec_) ? momentum_.data() : nullptr;
    span.variance = NeedsVariance(spec_) ? variance_.data() : nullptr;
    if (spec_.states == StateForm::kSplit8) {
      span.momentum_scales = reinterpret_cast<float*>(momentum_.data() + ScalesOffset(count_));
      span.variance_scales = reinterpret_cast<float*>(variance_.data() + ScalesOffset(count_));
    }
    span.gradient = gradient.data();
    span.gradient_dtype = DType::kBF16;
    span.param16 = param16_.data();
    span.count = count_;
    span.states = spec_.states;
    span.random = {RandomKey(5, step), 0};
    SelectKernels(BestIsa()).update(MakeFactors(spec_, {1e-3, step, 1.0F}, {1, 0.1}), span);
  }
  float Weight(uint64_t i) const {
    return IsSplit(spec_.states) ? Join(param16_[i], rest_[i]) : weights_[i];
  }
  uint16_t param16(uint64_t i) const { return param16_[i]; }

 private:
  const OptimizerSpec spec_;
  const uint64_t count_;
  std::vector<float> weights_;
  std::vector<std::byte> momentum_, variance_;
  std::vector<uint16_t> param16_;
  std::vector<int16_t> rest_;
};

OptimizerSpec SpecOf(OptimizerRule rule, StateForm form) {
  OptimizerSpec spec;
  spec.rule = rule;
  spec.states = form;
  spec.momentum = 0.9;
  spec.beta2 = rule == OptimizerRule::kLion ? 0.99 : 0.999;
  return spec;
}

// Gradients with a mean of their own for each element, and noise.
std::vector<uint16_t> GradientOf(uint64_t step, uint64_t count) {
  std::vector<uint16_t> gradient(count);
  const std::vector<float> mean = RandomFloats(50, count, 0.1F),
                           noise = RandomFloats(100 + step, count, 0.2F);
  for (uint64_t i = 0; i < count; ++i) gradient[i] = NarrowToBf16(mean[i] + noise[i]);
  return gradient;
}

TEST(SplitStates, HaveTheBitsOfFp32StatesWithTiesRoundedUp) {
  const FlushDenormals mode;
  constexpr uint64_t kCount = 1'000;
  for (uint32_t rule = 0; rule < RuleNames().size(); ++rule) {
    SmallRun whole(SpecOf(static_cast<OptimizerRule>(rule), StateForm::kF32), kCount);
    SmallRun split(SpecOf(static_cast<OptimizerRule>(rule), StateForm::kSplit), kCount);
    for (uint64_t step = 1; step <= 50; ++step) {
      whole.Step(step, GradientOf(step, kCount));
      split.Step(step, GradientOf(step, kCount));
    }
    for (uint64_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(split.Weight(i)), std::bit_cast<uint32_t>(whole.Weight(i)))
          << RuleNames()[rule];
      ASSERT_EQ(split.param16(i), Split(whole.Weight(i)).high);
    }
  }
}

// Mean distance of the weights after 200 steps to those with fp32 states, as a share of the mean
// distance that they have gone.
double RelativeDistance(OptimizerRule rule, StateForm form) {
  const FlushDenormals mode;
  constexpr uint64_t kCount = 2'048;
  SmallRun whole(SpecOf(rule, StateForm::kF32), kCount), small(SpecOf(rule, form), kCount);
  std::vector<float> before(kCount);
  for (uint64_t i = 0; i < kCount; ++i) before[i] = whole.Weight(i);
  for (uint64_t step = 1; step <= 200; ++step) {
    const std::vector<uint16_t> gradient = GradientOf(step, kCount);
    whole.Step(step, gradient);
    small.Step(step, gradient);
  }
  double distance = 0, way = 0;
  for (uint64_t i = 0; i < kCount; ++i) {
    distance += static_cast<double>(std::fabs(small.Weight(i) - whole.Weight(i)));
    way += static_cast<double>(std::fabs(whole.Weight(i) - before[i]));
  }
  return distance / way;
}

// The parity bounds of docs/planning.md. (Lion moves by whole steps, so one changed sign counts as
// much as any.)
TEST(SmallerStates, KeepTheirParityBounds) {
  for (uint32_t i = 0; i < RuleNames().size(); ++i) {
    const auto rule = static_cast<OptimizerRule>(i);
    const bool lion = rule == OptimizerRule::kLion;
    EXPECT_LT(RelativeDistance(rule, StateForm::kSplitBf16), lion ? 0.02 : 0.005) << RuleNames()[i];
    EXPECT_LT(RelativeDistance(rule, StateForm::kSplit8), lion ? 0.05 : 0.02) << RuleNames()[i];
  }
}

}  // namespace state_forms_test
}  // namespace tidepool::optim
