// DeepSpeedAdamStep: the only function of the library that bench/peers/deepspeed builds from
// DeepSpeed's own sources, and that bench_update_torch loads at run time.
//
// Any thread, one at a time; OpenMP's threads do the work. Plain C, so that the two sides can be
// compiled separately.
#pragma once

#include <cstdint>

namespace tidepool::bench {

// One step over whole planes.
struct DeepSpeedAdamCall {
  float *master, *momentum, *variance, *gradient;  // fp32[count]
  uint64_t count;
  uint64_t step;
  double lr, weight_decay;
};
using DeepSpeedAdamStep = void(const DeepSpeedAdamCall& call);
inline constexpr const char* kDeepSpeedAdamStep = "tidepool_deepspeed_adam_step";

}  // namespace tidepool::bench
