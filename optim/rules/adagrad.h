// Adagrad: Duchi, Hazan and Singer 2011, as torch.optim.Adagrad defines it; the sum of squares is
// in the variance plane.
//
//   g += wd * p;   v += g * g;   p -= lr / (1 + (t - 1) * lr_decay) * g / (sqrt(v) + eps)
#pragma once

#include "optim/rules/rule.h"

namespace tidepool::optim {
namespace {

struct AdagradRule {
  static constexpr bool kMomentum = false, kVariance = true;

  struct Factors {
    float l2, eps;
    float step_size;  // lr / (1 + (t - 1) * lr_decay)
  };

  static bool Serves(const OptimizerSpec& spec) { return spec.rule == OptimizerRule::kAdagrad; }

  static Factors Make(const OptimizerSpec& spec, const StepScalars& step,
                      const GroupScalars& group) {
    const double steps_before = static_cast<double>(step.optimizer_step) - 1;
    Factors f;
    f.l2 = static_cast<float>(group.weight_decay);
    f.eps = static_cast<float>(spec.eps);
    f.step_size = static_cast<float>(step.lr * group.lr_scale / (1 + steps_before * spec.lr_decay));
    return f;
  }

  TP_OPTIM_STEP void Step(const Factors& f, float g, Element* e) {
    g = g + f.l2 * e->p;
    e->v = e->v + g * g;
    e->p = e->p - f.step_size * g / (__builtin_sqrtf(e->v) + f.eps);
  }

  static void Reference(const Factors& f, float g, Element* e) {
    g += f.l2 * e->p;
    e->v += g * g;
    e->p -= f.step_size * g / (std::sqrt(e->v) + f.eps);
  }
};

}  // namespace
}  // namespace tidepool::optim
