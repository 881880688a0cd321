#include "optim/update_rule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "optim/kernels.h"
#include "tests/optim/random_arrays.h"

namespace tidepool::optim {
namespace {

constexpr double kEpsilon32 = 0x1p-23;

// torch::optim::Adam(W)'s step as it is written in its documentation, in double.
struct DoubleAdam {
  AdamSpec spec;
  double lr, weight_decay;
  double p = 0, m = 0, v = 0;

  // Returns the size of the change.
  double Step(double g, uint64_t step) {
    const double t = static_cast<double>(step);
    if (spec.decoupled) {
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
  void Update(const AdamSpec& spec, const StepScalars& step, const GroupScalars& group) {
    SelectKernels(BestIsa()).update(MakeAdamFactors(spec, step, group), {&p, &m, &v, &g, DType::kF32, nullptr, DType::kBF16, 1});
  }
};

TEST(AdamW, FirstStepByHand) {
  // m = 0.05, v = 2.5e-4; corrected 0.5 and 0.25; p = 1 - 0.1 * 0.01 - 0.1 * 0.5 / 0.5.
  OneParameter one{1.0F, 0, 0, 0.5F};
  one.Update(AdamSpec{}, {0.1, 1, 1.0F}, {1, 0.01});
  EXPECT_NEAR(one.p, 0.899, 1e-6);
  EXPECT_NEAR(one.m, 0.05, 1e-8);
  EXPECT_NEAR(one.v, 2.5e-4, 1e-10);
}

TEST(Adam, FirstStepByHandPutsDecayIntoTheGradient) {
  OneParameter one{1.0F, 0, 0, 0.5F};
  one.Update({false, 0.9, 0.999, 1e-8}, {0.1, 1, 1.0F}, {1, 0.01});
  EXPECT_NEAR(one.p, 0.9, 1e-6);
  EXPECT_NEAR(one.m, 0.051, 1e-8);
  EXPECT_NEAR(one.v, 0.51 * 0.51 * 1e-3, 1e-10);
}

TEST(AdamW, GradientScaleAndRateScaleAreMultiplied) {
  OneParameter scaled{1.0F, 0, 0, 0.5F * 1024};
  scaled.Update(AdamSpec{}, {0.2, 1, 1.0F / 1024}, {0.5, 0.01});
  OneParameter plain{1.0F, 0, 0, 0.5F};
  plain.Update(AdamSpec{}, {0.1, 1, 1.0F}, {1, 0.01});
  EXPECT_EQ(scaled.p, plain.p);
  EXPECT_EQ(scaled.m, plain.m);
}

// One step from random fp32 states: each fp32 operation rounds once, so a few units in the last place of the largest term remain.
TEST(Adam, OneStepIsWithinAFewRoundingsOfTorchsFormula) {
  SplitMix64 random(77);
  for (int i = 0; i < 20'000; ++i) {
    AdamSpec spec;
    spec.decoupled = random.Below(2) == 0;
    const StepScalars step{1e-3 * random.Unit(), 1 + random.Below(5000), 1.0F};
    const GroupScalars group{1, 0.1 * random.Unit()};
    OneParameter one{RandomFloat(random, 1), RandomFloat(random, 0.1F), std::fabs(RandomFloat(random, 0.01F)), RandomFloat(random, 1)};
    DoubleAdam exact{spec, step.lr, group.weight_decay, one.p, one.m, one.v};
    const double old_p = std::fabs(exact.p);
    const double terms_m = std::fabs(exact.m) + std::fabs(one.g) + old_p;
    const double change = exact.Step(one.g, step.optimizer_step);
    one.Update(spec, step, group);
    const double step_size = step.lr / (1 - std::pow(spec.beta1, static_cast<double>(step.optimizer_step)));
    const double change_error = 8 * change + 2 * step_size * terms_m / (std::sqrt(exact.v) + spec.eps);
    ASSERT_NEAR(one.m, exact.m, 2 * kEpsilon32 * terms_m);
    ASSERT_NEAR(one.v, exact.v, 4 * kEpsilon32 * (exact.v + terms_m * std::fabs(one.g) * 1e-3));
    ASSERT_NEAR(one.p, exact.p, kEpsilon32 * (2 * old_p + change_error));
  }
}

// The fp32 factor 1 - lr * weight_decay is off by up to 2^-25, here as in torch, and the error adds up: 500 * 2^-25 = 1.5e-5.
TEST(Adam, FiveHundredStepsStayWithinTheRoundingOfTheDecayFactor) {
  for (bool decoupled : {false, true}) {
    SplitMix64 random(5);
    AdamSpec spec;
    spec.decoupled = decoupled;
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
    for (size_t i = 0; i < ours.size(); ++i) EXPECT_NEAR(ours[i].p, exact[i].p, 2e-5 * std::fabs(exact[i].p) + 2e-6);
  }
}

TEST(AdamFactors, LaterStepsCorrectLess) {
  const AdamFactors first = MakeAdamFactors(AdamSpec{}, {1e-3, 1, 1.0F}, {});
  const AdamFactors late = MakeAdamFactors(AdamSpec{}, {1e-3, 100'000, 1.0F}, {});
  EXPECT_FLOAT_EQ(first.step_size, 1e-2F);
  EXPECT_FLOAT_EQ(first.inverse_sqrt_bias2, static_cast<float>(1 / std::sqrt(1e-3)));
  EXPECT_FLOAT_EQ(late.step_size, 1e-3F);
  EXPECT_FLOAT_EQ(late.inverse_sqrt_bias2, 1.0F);
}

TEST(AdamFactorsDeathTest, StepZeroIsABug) {
  EXPECT_DEATH(MakeAdamFactors(AdamSpec{}, {1e-3, 0, 1.0F}, {}), "counted from 1");
}

TEST(AdamSpec, BadNumbersAreRefused) {
  EXPECT_TRUE(CheckAdamSpec(AdamSpec{}).ok());
  EXPECT_TRUE(CheckAdamSpec({true, 0, 0, 1e-6}).ok());
  for (const AdamSpec& bad : {AdamSpec{true, 1.0, 0.999, 1e-8}, AdamSpec{true, 0.9, -0.1, 1e-8}, AdamSpec{true, 0.9, 0.999, 0},
                              AdamSpec{true, NAN, 0.999, 1e-8}, AdamSpec{true, 0.9, 0.999, INFINITY}}) {
    EXPECT_EQ(CheckAdamSpec(bad).id(), ErrorId::kConfigBadValue);
  }
}

TEST(UpdateSpan, SliceMovesEveryPlaneByItsOwnElementSize) {
  std::vector<float> f(30);
  std::vector<uint16_t> h(20);
  const UpdateSpan span{f.data(), f.data() + 10, f.data() + 20, h.data(), DType::kBF16, h.data() + 10, DType::kF16, 10};
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

}  // namespace
}  // namespace tidepool::optim
