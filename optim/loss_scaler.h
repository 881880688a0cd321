// LossScaler: dynamic loss scaling for fp16 (Micikevicius et al. 2018, section 3.2): the scale
// falls when a gradient overflows and grows after a run of good steps.
//
// One thread per object; a plain state machine without clock or I/O, so all ranks that see the same
// verdicts hold the same scale. The state is small and goes into the step record. Invariant:
// min_scale <= scale <= max_scale.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace tidepool::optim {

// The parameters of loss scaling.
struct LossScalerSpec {
  double initial_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  uint32_t growth_interval = 2000;  // good steps in a row before the scale grows
  uint32_t hysteresis = 1;          // overflows before the scale falls; 1: every one
  double min_scale = 1;
  double max_scale = 4294967296.0;  // 2^32, so that scale and 1 / scale stay far inside fp32
};

// Ok if min <= initial <= max, growth >= 1, 0 < backoff <= 1 and the counts are positive. Errors:
// kConfigBadValue.
Status CheckLossScalerSpec(const LossScalerSpec& spec);

class LossScaler {
 public:
  struct State {
    double scale;
    uint32_t good_steps;       // in a row
    uint32_t hysteresis_left;  // overflows until the scale falls, this one included
    uint64_t skipped_steps;    // total steps without an update
  };

  // Requires a checked spec.
  explicit LossScaler(const LossScalerSpec& spec);
  // Continues from a state that an earlier object of the same spec returned.
  LossScaler(const LossScalerSpec& spec, const State& state);

  // Notes the verdict of one step. False: it overflowed and must be skipped.
  bool Update(bool gradients_finite);

  double scale() const { return state_.scale; }
  // An overflow at this scale means that training itself diverges: a smaller scale would not help.
  bool at_minimum() const { return state_.scale <= spec_.min_scale; }
  const State& state() const { return state_; }

 private:
  const LossScalerSpec spec_;
  State state_;
};

}  // namespace tidepool::optim
