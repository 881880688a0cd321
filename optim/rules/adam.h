// AdamW and Adam: Loshchilov and Hutter 2019, algorithm 2; Kingma and Ba 2015, algorithm 1, in
// torch's form.
//
//   AdamW: p -= lr * wd * p.      Adam: g += wd * p.
//   m = b1 * m + (1 - b1) * g;    v = b2 * v + (1 - b2) * g * g
//   p -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)
#pragma once

#include "optim/rules/rule.h"

namespace tidepool::optim {
namespace {

template <bool kDecoupled>
struct AdamRule {
  static constexpr bool kMomentum = true, kVariance = true;

  struct Factors {
    // 1 - lr * weight_decay, or the weight decay itself if it is added to the gradient.
    float decay;
    float beta1, one_minus_beta1;
    float beta2, one_minus_beta2;
    float inverse_sqrt_bias2;  // 1 / sqrt(1 - beta2^t)
    float eps;
    float step_size;  // lr / (1 - beta1^t)
  };

  static bool Serves(const OptimizerSpec& spec) {
    return spec.rule == (kDecoupled ? OptimizerRule::kAdamW : OptimizerRule::kAdam);
  }

  static Factors Make(const OptimizerSpec& spec, const StepScalars& step,
                      const GroupScalars& group) {
    const auto t = static_cast<double>(step.optimizer_step);
    const double lr = step.lr * group.lr_scale;

    Factors f;
    f.decay = static_cast<float>(kDecoupled ? 1.0 - lr * group.weight_decay : group.weight_decay);
    f.beta1 = static_cast<float>(spec.beta1);
    f.one_minus_beta1 = static_cast<float>(1.0 - spec.beta1);
    f.beta2 = static_cast<float>(spec.beta2);
    f.one_minus_beta2 = static_cast<float>(1.0 - spec.beta2);
    f.inverse_sqrt_bias2 = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(spec.beta2, t)));
    f.eps = static_cast<float>(spec.eps);
    f.step_size = static_cast<float>(lr / (1.0 - std::pow(spec.beta1, t)));

    return f;
  }

  TP_OPTIM_STEP void Step(const Factors& f, float g, Element* e) {
    if constexpr (kDecoupled) {
      e->p = e->p * f.decay;
    } else {
      g = g + f.decay * e->p;
    }
    e->m = f.beta1 * e->m + f.one_minus_beta1 * g;
    e->v = f.beta2 * e->v + f.one_minus_beta2 * (g * g);
    e->p = e->p - f.step_size * e->m / (TP_SQUARE_ROOT(e->v) * f.inverse_sqrt_bias2 + f.eps);
  }

  static void Reference(const Factors& f, float g, Element* e) {
    if (kDecoupled) {
      e->p *= f.decay;
    } else {
      g += f.decay * e->p;
    }
    e->m = f.beta1 * e->m + f.one_minus_beta1 * g;
    e->v = f.beta2 * e->v + f.one_minus_beta2 * (g * g);
    const float denominator = std::sqrt(e->v) * f.inverse_sqrt_bias2 + f.eps;
    e->p -= f.step_size * e->m / denominator;
  }
};

}  // namespace
}  // namespace tidepool::optim
