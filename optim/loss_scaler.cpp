#include "optim/loss_scaler.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace tidepool::optim {

Status CheckLossScalerSpec(const LossScalerSpec& spec) {
  const bool range = spec.min_scale > 0 && spec.min_scale <= spec.initial_scale &&
                     spec.initial_scale <= spec.max_scale;
  if (!range || !std::isfinite(spec.max_scale)) {
    return Status(ErrorId::kConfigBadValue, "loss scale " + std::to_string(spec.initial_scale) +
                                                " lies outside [" + std::to_string(spec.min_scale) +
                                                ", " + std::to_string(spec.max_scale) + "]")
        .Fix("give 0 < minimum <= initial scale <= maximum");
  }

  const bool factors = spec.growth_factor >= 1 && std::isfinite(spec.growth_factor) &&
                       spec.backoff_factor > 0 && spec.backoff_factor <= 1;
  if (!factors || spec.growth_interval == 0 || spec.hysteresis == 0) {
    return Status(ErrorId::kConfigBadValue,
                  "loss scale grows by " + std::to_string(spec.growth_factor) + " after " +
                      std::to_string(spec.growth_interval) + " steps and falls by " +
                      std::to_string(spec.backoff_factor) + " after " +
                      std::to_string(spec.hysteresis) + " overflows")
        .Fix("give growth >= 1, 0 < backoff <= 1, and at least one step and one overflow");
  }

  return Status();
}

LossScaler::LossScaler(const LossScalerSpec& spec)
    : LossScaler(spec, State{spec.initial_scale, 0, spec.hysteresis, 0}) {}

LossScaler::LossScaler(const LossScalerSpec& spec, const State& state)
    : spec_(spec), state_(state) {}

bool LossScaler::Update(bool gradients_finite) {
  if (!gradients_finite) {
    ++state_.skipped_steps;
    state_.good_steps = 0;
    if (state_.hysteresis_left > 1) {
      --state_.hysteresis_left;
    } else {
      state_.scale = std::max(spec_.min_scale, state_.scale * spec_.backoff_factor);
    }
    return false;
  }

  if (++state_.good_steps == spec_.growth_interval) {
    state_.good_steps = 0;
    state_.hysteresis_left = spec_.hysteresis;
    state_.scale = std::min(spec_.max_scale, state_.scale * spec_.growth_factor);
  }
  return true;
}

}  // namespace tidepool::optim
