#include "optim/update_rule.h"

#include <cmath>
#include <string>

#include "base/check.h"

namespace tidepool::optim {
namespace {

bool IsBeta(double beta) {
  return beta >= 0 && beta < 1;
}

}  // namespace

Status CheckAdamSpec(const AdamSpec& spec) {
  if (!IsBeta(spec.beta1) || !IsBeta(spec.beta2)) {
    return Status(ErrorId::kConfigBadValue, "Adam betas are " + std::to_string(spec.beta1) + " and " + std::to_string(spec.beta2))
        .Fix("give betas of at least 0 and below 1");
  }
  if (!(spec.eps > 0) || !std::isfinite(spec.eps)) {
    return Status(ErrorId::kConfigBadValue, "Adam eps is " + std::to_string(spec.eps)).Fix("give a small positive eps, such as 1e-8");
  }
  return Status();
}

AdamFactors MakeAdamFactors(const AdamSpec& spec, const StepScalars& step, const GroupScalars& group) {
  TP_CHECK(step.optimizer_step >= 1, "optimizer steps are counted from 1");
  const double t = static_cast<double>(step.optimizer_step);
  const double lr = step.lr * group.lr_scale;
  AdamFactors factors;
  factors.decoupled = spec.decoupled;
  factors.gradient_scale = step.gradient_scale;
  factors.decay = spec.decoupled ? static_cast<float>(1.0 - lr * group.weight_decay) : 1.0F;
  factors.l2 = spec.decoupled ? 0.0F : static_cast<float>(group.weight_decay);
  factors.beta1 = static_cast<float>(spec.beta1);
  factors.one_minus_beta1 = static_cast<float>(1.0 - spec.beta1);
  factors.beta2 = static_cast<float>(spec.beta2);
  factors.one_minus_beta2 = static_cast<float>(1.0 - spec.beta2);
  factors.inverse_sqrt_bias2 = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(spec.beta2, t)));
  factors.eps = static_cast<float>(spec.eps);
  factors.step_size = static_cast<float>(lr / (1.0 - std::pow(spec.beta1, t)));
  return factors;
}

UpdateSpan Slice(const UpdateSpan& span, uint64_t first, uint64_t count) {
  TP_CHECK(first <= span.count && count <= span.count - first, "slice lies outside its span");
  UpdateSpan slice = span;
  slice.master += first;
  slice.momentum += first;
  slice.variance += first;
  slice.gradient = static_cast<const char*>(span.gradient) + first * BytesOf(span.gradient_dtype);
  if (span.param16 != nullptr) slice.param16 = static_cast<char*>(span.param16) + first * BytesOf(span.param16_dtype);
  slice.count = count;
  return slice;
}

}  // namespace tidepool::optim
