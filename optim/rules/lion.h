// Lion: Chen et al. 2023 (arXiv 2302.06675), algorithm 2. The sign of zero and of NaN is zero.
//
//   p -= lr * wd * p;   p -= lr * sign(b1 * m + (1 - b1) * g);   m = b2 * m + (1 - b2) * g
#pragma once

#include "optim/rules/rule.h"

namespace tidepool::optim {
namespace {

struct LionRule {
  static constexpr bool kMomentum = true, kVariance = false;

  struct Factors {
    float decay;  // 1 - lr * weight_decay
    float beta1, one_minus_beta1;
    float beta2, one_minus_beta2;
    float lr;
  };

  static bool Serves(const OptimizerSpec& spec) { return spec.rule == OptimizerRule::kLion; }

  static Factors Make(const OptimizerSpec& spec, const StepScalars& step,
                      const GroupScalars& group) {
    const double lr = step.lr * group.lr_scale;
    Factors f;
    f.decay = static_cast<float>(1.0 - lr * group.weight_decay);
    f.beta1 = static_cast<float>(spec.beta1);
    f.one_minus_beta1 = static_cast<float>(1.0 - spec.beta1);
    f.beta2 = static_cast<float>(spec.beta2);
    f.one_minus_beta2 = static_cast<float>(1.0 - spec.beta2);
    f.lr = static_cast<float>(lr);
    return f;
  }

  TP_OPTIM_STEP void Step(const Factors& f, float g, Element* e) {
    const float c = f.beta1 * e->m + f.one_minus_beta1 * g;
    const float up = c > 0.0F ? f.lr : 0.0F;
    const float down = c < 0.0F ? f.lr : 0.0F;
    e->p = e->p * f.decay - (up - down);
    e->m = f.beta2 * e->m + f.one_minus_beta2 * g;
  }

  static void Reference(const Factors& f, float g, Element* e) {
    const float c = f.beta1 * e->m + f.one_minus_beta1 * g;
    float change = 0;
    if (c > 0) change = f.lr;
    if (c < 0) change = -f.lr;
    e->p = e->p * f.decay - change;
    e->m = f.beta2 * e->m + f.one_minus_beta2 * g;
  }
};

}  // namespace
}  // namespace tidepool::optim
