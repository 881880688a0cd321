#include "optim/update_rule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "optim/kernels/kernels.h"
#include "tests/optim/random_arrays.h"

namespace tidepool::optim {
namespace update_rule_test {

constexpr double kEpsilon32 = 0x1p-23;

// torch::optim::Adam(W)'s step as it is written in its documentation, in double.
struct DoubleAdam {
  OptimizerSpec spec;
  double lr, weight_decay;
  double p = 0, m = 0, v = 0;

  // Returns the size of the change.
  double Step(double g, uint64_t step) {
    const double t = static_cast<double>(step);
    if (spec.rule == OptimizerRule::kAdamW) {
      p -= lr * weight_decay * p;
    } else {
      g += weight_decay * p;
    }
    m = spec.beta1 * m + (1 - spec.beta1) * g;
    v = spec.beta2 * v + (1 - spec.beta2) * g * g;
    const double denominator = std::sqrt(v) / std::sqrt(1 - std::pow(spec.beta2, t)) + spec.eps;
    const double change = lr / (1 - std::pow(spec.beta1, t)) * m / denominator;
    p -= change;
    return std::fabs(change);
  }
};

struct OneParameter {
  float p, m, v, g;
  void Update(const OptimizerSpec& spec, const StepScalars& step, const GroupScalars& group) {
    UpdateSpan span{&p,
                    NeedsMomentum(spec) ? &m : nullptr,
                    NeedsVariance(spec) ? &v : nullptr,
                    &g,
                    DType::kF32,
                    nullptr,
                    DType::kBF16,
                    1};
    SelectKernels(BestIsa()).update(MakeFactors(spec, step, group), span);
  }
};

TEST(AdamW, FirstStepByHand) {
  // m = 0.05, v = 2.5e-4; corrected 0.5 and 0.25; p = 1 - 0.1 * 0.01 - 0.1 * 0.5 / 0.5.
  OneParameter one{1.0F, 0, 0, 0.5F};
  one.Update(OptimizerSpec{}, {0.1, 1, 1.0F}, {1, 0.01});
  EXPECT_NEAR(one.p, 0.899, 1e-6);
  EXPECT_NEAR(one.m, 0.05, 1e-8);
  EXPECT_NEAR(one.v, 2.5e-4, 1e-10);
}

TEST(Adam, FirstStepByHandPutsDecayIntoTheGradient) {
  OneParameter one{1.0F, 0, 0, 0.5F};
  OptimizerSpec adam;
  adam.rule = OptimizerRule::kAdam;
  one.Update(adam, {0.1, 1, 1.0F}, {1, 0.01});
  EXPECT_NEAR(one.p, 0.9, 1e-6);
  EXPECT_NEAR(one.m, 0.051, 1e-8);
  EXPECT_NEAR(one.v, 0.51 * 0.51 * 1e-3, 1e-10);
}

TEST(AdamW, GradientScaleAndRateScaleAreMultiplied) {
  OneParameter scaled{1.0F, 0, 0, 0.5F * 1024};
  scaled.Update(OptimizerSpec{}, {0.2, 1, 1.0F / 1024}, {0.5, 0.01});
  OneParameter plain{1.0F, 0, 0, 0.5F};
  plain.Update(OptimizerSpec{}, {0.1, 1, 1.0F}, {1, 0.01});
  EXPECT_EQ(scaled.p, plain.p);
  EXPECT_EQ(scaled.m, plain.m);
}

// One step from random fp32 states: each fp32 operation rounds once, so a few units in the last
// place of the largest term remain.
TEST(Adam, OneStepIsWithinAFewRoundingsOfTorchsFormula) {
  SplitMix64 random(77);
  for (int i = 0; i < 20'000; ++i) {
    OptimizerSpec spec;
    spec.rule = random.Below(2) == 0 ? OptimizerRule::kAdamW : OptimizerRule::kAdam;
    const StepScalars step{1e-3 * random.Unit(), 1 + random.Below(5000), 1.0F};
    const GroupScalars group{1, 0.1 * random.Unit()};
    OneParameter one{RandomFloat(random, 1), RandomFloat(random, 0.1F),
                     std::fabs(RandomFloat(random, 0.01F)), RandomFloat(random, 1)};
    DoubleAdam exact{spec, step.lr, group.weight_decay, one.p, one.m, one.v};
    const double old_p = std::fabs(exact.p);
    const double terms_m = std::fabs(exact.m) + std::fabs(one.g) + old_p;
    const double change = exact.Step(one.g, step.optimizer_step);
    one.Update(spec, step, group);
    const double step_size =
        step.lr / (1 - std::pow(spec.beta1, static_cast<double>(step.optimizer_step)));
    const double change_error =
        8 * change + 2 * step_size * terms_m / (std::sqrt(exact.v) + spec.eps);
    ASSERT_NEAR(one.m, exact.m, 2 * kEpsilon32 * terms_m);
    ASSERT_NEAR(one.v, exact.v, 4 * kEpsilon32 * (exact.v + terms_m * std::fabs(one.g) * 1e-3));
    ASSERT_NEAR(one.p, exact.p, kEpsilon32 * (2 * old_p + change_error));
  }
}

// The fp32 factor 1 - lr * weight_decay is off by up to 2^-25, here as in torch, and the error adds
// up: 500 * 2^-25 = 1.5e-5.
TEST(Adam, FiveHundredStepsStayWithinTheRoundingOfTheDecayFactor) {
  for (bool decoupled : {false, true}) {
    SplitMix64 random(5);
    OptimizerSpec spec;
    spec.rule = decoupled ? OptimizerRule::kAdamW : OptimizerRule::kAdam;
    std::vector<OneParameter> ours(16);
    std::vector<DoubleAdam> exact;
    for (OneParameter& one : ours) {
      one = {RandomFloat(random, 1), 0, 0, 0};
      exact.push_back({spec, 1e-3, 0.1, one.p, 0, 0});
    }
    for (uint64_t step = 1; step <= 500; ++step) {
      for (size_t i = 0; i < ours.size(); ++i) {
        ours[i].g = RandomFloat(random, 1) + 0.1F;
        exact[i].Step(ours[i].g, step);
        ours[i].Update(spec, {1e-3, step, 1.0F}, {1, 0.1});
      }
    }
    for (size_t i = 0; i < ours.size(); ++i)
      EXPECT_NEAR(ours[i].p, exact[i].p, 2e-5 * std::fabs(exact[i].p) + 2e-6);
  }
}

TEST(StepFactors, ParameterGroupsAndStepsHaveTheirOwn) {
  const auto same = [](const StepFactors& a, const StepFactors& b) {
    return std::memcmp(a.numbers, b.numbers, kFactorBytes) == 0;
  };
  const StepFactors first = MakeFactors(OptimizerSpec{}, {1e-3, 1, 1.0F}, {});
  EXPECT_FALSE(same(first, MakeFactors(OptimizerSpec{}, {1e-3, 2, 1.0F}, {})));
  EXPECT_FALSE(same(first, MakeFactors(OptimizerSpec{}, {1e-3, 1, 1.0F}, {0.5, 0})));
  EXPECT_TRUE(same(first, MakeFactors(OptimizerSpec{}, {1e-3, 1, 0.5F}, {})));
}

TEST(StepFactorsDeathTest, StepZeroIsABug) {
  EXPECT_DEATH(MakeFactors(OptimizerSpec{}, {1e-3, 0, 1.0F}, {}), "counted from 1");
}

constexpr double kRate = 1e-3, kDecay = 0.1;

struct Numbers {
  double p = 0, m = 0, v = 0;
};

// The rules in double, as torch's documentation and the paper of Lion write them.
void StepInDouble(const OptimizerSpec& spec, uint64_t step, double g, Numbers* n) {
  constexpr double lr = kRate, weight_decay = kDecay;
  if (spec.rule == OptimizerRule::kLion) {
    const double c = spec.beta1 * n->m + (1 - spec.beta1) * g;
    n->p = n->p * (1 - lr * weight_decay) - lr * (c > 0 ? 1 : c < 0 ? -1 : 0);
    n->m = spec.beta2 * n->m + (1 - spec.beta2) * g;
    return;
  }
  g += weight_decay * n->p;
  if (spec.rule == OptimizerRule::kAdagrad) {
    n->v += g * g;
    n->p -=
        lr / (1 + static_cast<double>(step - 1) * spec.lr_decay) * g / (std::sqrt(n->v) + spec.eps);
    return;
  }
  if (spec.momentum > 0) {
    n->m = step == 1 ? g : spec.momentum * n->m + (1 - spec.dampening) * g;
    g = spec.nesterov != 0 ? g + spec.momentum * n->m : n->m;
  }
  n->p -= lr * g;
}

class OtherRules : public ::testing::TestWithParam<OptimizerSpec> {};

// 200 steps of 16 parameters: no more than a rounding a step (2^-24 of the numbers, which stay
// below 2), and the factors' own.
TEST_P(OtherRules, TwoHundredStepsStayWithinARoundingAStep) {
  const OptimizerSpec& spec = GetParam();
  SplitMix64 random(8);
  std::vector<OneParameter> ours(16);
  std::vector<Numbers> exact(16);
  for (size_t i = 0; i < ours.size(); ++i) ours[i] = {RandomFloat(random, 1), 0, 0, 0};
  for (size_t i = 0; i < ours.size(); ++i) exact[i].p = ours[i].p;
  for (uint64_t step = 1; step <= 200; ++step) {
    for (size_t i = 0; i < ours.size(); ++i) {
      ours[i].g = RandomFloat(random, 1) + 0.1F;
      StepInDouble(spec, step, ours[i].g, &exact[i]);
      ours[i].Update(spec, {kRate, step, 1.0F}, {1, kDecay});
    }
  }
  for (size_t i = 0; i < ours.size(); ++i)
    EXPECT_NEAR(ours[i].p, exact[i].p, 200 * kEpsilon32) << NameOf(spec.rule);
}

OptimizerSpec SpecOf(OptimizerRule rule, double momentum = 0, double dampening = 0,
                     uint32_t nesterov = 0) {
  OptimizerSpec spec;
  spec.rule = rule;
  spec.momentum = momentum;
  spec.dampening = dampening;
  spec.nesterov = nesterov;
  spec.lr_decay = 0.01;
  spec.beta2 = 0.99;
  return spec;
}
INSTANTIATE_TEST_SUITE_P(
    All, OtherRules,
    ::testing::Values(SpecOf(OptimizerRule::kSgd), SpecOf(OptimizerRule::kSgd, 0.9),
                      SpecOf(OptimizerRule::kSgd, 0.9, 0.5), SpecOf(OptimizerRule::kSgd, 0.9, 0, 1),
                      SpecOf(OptimizerRule::kAdagrad), SpecOf(OptimizerRule::kLion)));

TEST(Lion, LeavesAParameterWithoutMomentumAndGradientAlone) {
  OneParameter one{1.0F, 0, 0, 0};
  one.Update(SpecOf(OptimizerRule::kLion), {0.1, 3, 1.0F}, {1, 0});
  EXPECT_EQ(one.p, 1.0F);
}

TEST(OptimizerSpec, NamesComeBack) {
  for (const char* name : RuleNames()) EXPECT_STREQ(NameOf(*RuleFromName(name)), name);
  for (const char* name : StateFormNames()) EXPECT_STREQ(NameOf(*StateFormFromName(name)), name);
  EXPECT_FALSE(RuleFromName("adamx").has_value());
  EXPECT_EQ(NameOf(static_cast<StateForm>(4)), nullptr);
}

TEST(UpdateSpan, SliceMovesEveryPlaneByItsOwnElementSize) {
  std::vector<float> f(30);
  std::vector<uint16_t> h(20);
  const UpdateSpan span{f.data(),     f.data() + 10, f.data() + 20, h.data(),
                        DType::kBF16, h.data() + 10, DType::kF16,   10};
  const UpdateSpan slice = Slice(span, 4, 3);
  EXPECT_EQ(slice.master, f.data() + 4);
  EXPECT_EQ(slice.momentum, f.data() + 14);
  EXPECT_EQ(slice.variance, f.data() + 24);
  EXPECT_EQ(slice.gradient, h.data() + 4);
  EXPECT_EQ(slice.param16, h.data() + 14);
  EXPECT_EQ(slice.count, 3U);
}

TEST(UpdateSpanDeathTest, SliceBeyondTheEndIsABug) {
  float f[4] = {};
  const UpdateSpan span{f, f, f, f, DType::kF32, nullptr, DType::kBF16, 4};
  EXPECT_DEATH(Slice(span, 2, 3), "outside its span");
}

}  // namespace update_rule_test
}  // namespace tidepool::optim
