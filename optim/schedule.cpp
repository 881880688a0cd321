#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

namespace tidepool::optim {

Result<ScheduleKind> ScheduleFromName(std::string_view name) {
  if (name == "constant") return ScheduleKind::kConstant;
  if (name == "linear") return ScheduleKind::kLinear;
  if (name == "cosine") return ScheduleKind::kCosine;
  return Status(ErrorId::kConfigBadValue,
                "unknown learning-rate schedule \"" + std::string(name) + "\"")
      .Fix("give constant, linear or cosine");
}

Status CheckSchedule(const ScheduleSpec& spec) {
  if (!std::isfinite(spec.base_lr) || !(spec.base_lr >= 0)) {
    return Status(ErrorId::kConfigBadValue, "learning rate is " + std::to_string(spec.base_lr))
        .Fix("give a finite rate of at least 0");
  }

  if (spec.kind == ScheduleKind::kConstant) return Status();
  if (!(spec.min_lr >= 0 && spec.min_lr <= spec.base_lr)) {
    return Status(ErrorId::kConfigBadValue, "lowest learning rate " + std::to_string(spec.min_lr) +
                                                " is not in [0, " + std::to_string(spec.base_lr) +
                                                "]")
        .Fix("give a lowest rate between 0 and the learning rate");
  }

  if (spec.warmup_steps > spec.total_steps) {
    return Status(ErrorId::kConfigBadValue, std::to_string(spec.warmup_steps) +
                                                " warm-up steps in a run of " +
                                                std::to_string(spec.total_steps) + " steps")
        .Fix("give at most as many warm-up steps as steps");
  }
  return Status();
}

double LearningRateAt(const ScheduleSpec& spec, uint64_t step) {
  if (step < spec.warmup_steps)
    return spec.base_lr * static_cast<double>(step) / static_cast<double>(spec.warmup_steps);
  if (spec.kind == ScheduleKind::kConstant || step <= spec.warmup_steps) return spec.base_lr;
  if (step >= spec.total_steps) return spec.min_lr;
  const double done = static_cast<double>(step - spec.warmup_steps) /
                      static_cast<double>(spec.total_steps - spec.warmup_steps);
  const double share = spec.kind == ScheduleKind::kLinear
                           ? 1.0 - done
                           : 0.5 * (1.0 + std::cos(std::numbers::pi * done));
  return spec.min_lr + (spec.base_lr - spec.min_lr) * share;
}

}  // namespace tidepool::optim
