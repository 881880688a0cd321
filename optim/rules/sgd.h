// Stochastic gradient descent as torch.optim.SGD defines it, with or without momentum.
//
//   g += wd * p
//   without momentum:  p -= lr * g
//   with momentum:     m = mu * m + (1 - dampening) * g, at the first step m = g
//                      p -= lr * (nesterov ? g + mu * m : m)
#pragma once

#include "optim/rules/rule.h"

namespace tidepool::optim {
namespace {

struct SgdRule {
  static constexpr bool kMomentum = false, kVariance = false;

  struct Factors {
    float l2, lr;
  };

  static bool Serves(const OptimizerSpec& spec) {
    return spec.rule == OptimizerRule::kSgd && spec.momentum == 0;
  }

  static Factors Make(const OptimizerSpec& /*spec*/, const StepScalars& step,
                      const GroupScalars& group) {
    return {static_cast<float>(group.weight_decay), static_cast<float>(step.lr * group.lr_scale)};
  }

  TP_OPTIM_STEP void Step(const Factors& f, float g, Element* e) {
    e->p = e->p - f.lr * (g + f.l2 * e->p);
  }

  static void Reference(const Factors& f, float g, Element* e) {
    g += f.l2 * e->p;
    e->p -= f.lr * g;
  }
};

template <bool kNesterov>
struct MomentumRule {
  static constexpr bool kMomentum = true, kVariance = false;

  struct Factors {
    float l2, lr, mu;
    float share;  // of the gradient: 1 - dampening; 1 at the first step, whose momentum is zero
  };

  static bool Serves(const OptimizerSpec& spec) {
    return spec.rule == OptimizerRule::kSgd && spec.momentum > 0 &&
           (spec.nesterov != 0) == kNesterov;
  }

  static Factors Make(const OptimizerSpec& spec, const StepScalars& step,
                      const GroupScalars& group) {
    Factors f;
    f.l2 = static_cast<float>(group.weight_decay);
    f.lr = static_cast<float>(step.lr * group.lr_scale);
    f.mu = static_cast<float>(spec.momentum);
    f.share = step.optimizer_step == 1 ? 1.0F : static_cast<float>(1.0 - spec.dampening);
    return f;
  }

  TP_OPTIM_STEP void Step(const Factors& f, float g, Element* e) {
    g = g + f.l2 * e->p;
    e->m = f.mu * e->m + f.share * g;
    e->p = e->p - f.lr * (kNesterov ? g + f.mu * e->m : e->m);
  }

  static void Reference(const Factors& f, float g, Element* e) {
    g += f.l2 * e->p;
    e->m = f.mu * e->m + f.share * g;
    float direction = e->m;
    if (kNesterov) direction = g + f.mu * e->m;
    e->p -= f.lr * direction;
  }
};

}  // namespace
}  // namespace tidepool::optim
