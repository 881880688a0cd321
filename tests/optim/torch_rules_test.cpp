// Each update rule against torch::optim in fp64: same parameters, gradients and numbers, step after
// step.
#include <gtest/gtest.h>
#include <torch/optim.h>

#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "optim/kernels/kernels.h"
#include "optim/update_rule.h"
#include "tests/optim/random_arrays.h"

namespace tidepool::optim {
namespace torch_rules_test {

constexpr uint64_t kCount = 200;
constexpr uint64_t kSteps = 100;
constexpr double kRate = 1e-3, kWeightDecay = 0.1;

using Parameters = std::vector<at::Tensor>;
using Maker = std::function<std::unique_ptr<torch::optim::Optimizer>(const Parameters&)>;

struct RuleCase {
  const char* name;
  OptimizerSpec spec;
  Maker make;
};

OptimizerSpec Spec(OptimizerRule rule, double momentum = 0, double dampening = 0,
                   uint32_t nesterov = 0) {
  OptimizerSpec spec;
  spec.rule = rule;
  spec.momentum = momentum;
  spec.dampening = dampening;
  spec.nesterov = nesterov;
  spec.lr_decay = rule == OptimizerRule::kAdagrad ? 0.01 : 0;
  if (rule == OptimizerRule::kAdagrad) spec.eps = 1e-10;
  return spec;
}

Maker Sgd(double momentum, double dampening, bool nesterov) {
  return [=](const Parameters& p) {
    auto options = torch::optim::SGDOptions(kRate)
                       .momentum(momentum)
                       .dampening(dampening)
                       .nesterov(nesterov)
                       .weight_decay(kWeightDecay);
    return std::make_unique<torch::optim::SGD>(p, options);
  };
}

std::vector<RuleCase> Cases() {
  const Maker adamw = [](const Parameters& p) {
    return std::make_unique<torch::optim::AdamW>(
        p, torch::optim::AdamWOptions(kRate).weight_decay(kWeightDecay));
  };
  const Maker adam = [](const Parameters& p) {
    return std::make_unique<torch::optim::Adam>(
        p, torch::optim::AdamOptions(kRate).weight_decay(kWeightDecay));
  };
  const Maker adagrad = [](const Parameters& p) {
    return std::make_unique<torch::optim::Adagrad>(
        p, torch::optim::AdagradOptions(kRate).lr_decay(0.01).weight_decay(kWeightDecay));
  };
  return {{"adamw", Spec(OptimizerRule::kAdamW), adamw},
          {"adam", Spec(OptimizerRule::kAdam), adam},
          {"sgd", Spec(OptimizerRule::kSgd), Sgd(0, 0, false)},
          {"momentum", Spec(OptimizerRule::kSgd, 0.9), Sgd(0.9, 0, false)},
          {"dampened", Spec(OptimizerRule::kSgd, 0.9, 0.5), Sgd(0.9, 0.5, false)},
          {"nesterov", Spec(OptimizerRule::kSgd, 0.9, 0, 1), Sgd(0.9, 0, true)},
          {"adagrad", Spec(OptimizerRule::kAdagrad), adagrad}};
}

class TorchRules : public ::testing::TestWithParam<RuleCase> {};

// Bound: a rounding (2^-23 of numbers up to 1) a step for parameter, decay factor and change each.
TEST_P(TorchRules, AHundredStepsFollowTorchInDoubles) {
  const OptimizerSpec& spec = GetParam().spec;
  std::vector<float> p = RandomFloats(1, kCount, 1.0F), m(kCount), v(kCount);
  at::Tensor theirs = torch::empty({kCount}, torch::kFloat64);
  for (uint64_t i = 0; i < kCount; ++i)
    theirs.mutable_data_ptr<double>()[i] = static_cast<double>(p[i]);
  theirs.requires_grad_(true);
  const auto optimizer = GetParam().make({theirs});
  theirs.mutable_grad() = torch::zeros({kCount}, torch::kFloat64);
  for (uint64_t step = 1; step <= kSteps; ++step) {
    const std::vector<float> g = RandomFloats(100 + step, kCount, 1.0F);
    for (uint64_t i = 0; i < kCount; ++i)
      theirs.mutable_grad().mutable_data_ptr<double>()[i] = static_cast<double>(g[i]);
    optimizer->step();
    UpdateSpan span{p.data()};
    span.momentum = NeedsMomentum(spec) ? m.data() : nullptr;
    span.variance = NeedsVariance(spec) ? v.data() : nullptr;
    span.gradient = g.data();
    span.count = kCount;
    SelectKernels(BestIsa()).update(MakeFactors(spec, {kRate, step, 1.0F}, {1, kWeightDecay}),
                                    span);
    const double bound = static_cast<double>(step) * 3 * 0x1p-23;
    for (uint64_t i = 0; i < kCount; ++i) {
      ASSERT_NEAR(static_cast<double>(p[i]), theirs.const_data_ptr<double>()[i], bound)
          << "step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, TorchRules, ::testing::ValuesIn(Cases()),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace torch_rules_test
}  // namespace tidepool::optim
