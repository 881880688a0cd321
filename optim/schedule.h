// Learning-rate schedules: constant, linear and cosine, each with a linear warm-up and a lowest
// rate.
//
// Any thread; a pure function of the step, so a restarted run needs only its step number.
//
//   lr |      ____            warm-up: base * step / warmup_steps, so step 1 already learns
//      |    /      \          then from base at warmup_steps down to min_lr at total_steps, and
//      |  /          \___     min_lr afterwards (constant stays at base)
//      +----------------------> step (1-based)
#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.h"

namespace tidepool::optim {

// The shape of the curve after the warm-up.
enum class ScheduleKind : uint8_t { kConstant, kLinear, kCosine };

// A schedule's parameters.
struct ScheduleSpec {
  ScheduleKind kind = ScheduleKind::kConstant;
  double base_lr = 1e-3;
  double min_lr = 0;          // for linear and cosine
  uint64_t warmup_steps = 0;  // 0: none
  uint64_t total_steps = 0;   // step at which linear and cosine reach min_lr
};

// "constant", "linear" or "cosine". Errors: kConfigBadValue.
Result<ScheduleKind> ScheduleFromName(std::string_view name);
// Ok if rates are finite, 0 <= min_lr <= base_lr, and, unless constant, warmup_steps <=
// total_steps. Errors: kConfigBadValue.
Status CheckSchedule(const ScheduleSpec& spec);
// The rate of 1-based `step`. Requires a checked spec.
double LearningRateAt(const ScheduleSpec& spec, uint64_t step);

}  // namespace tidepool::optim
