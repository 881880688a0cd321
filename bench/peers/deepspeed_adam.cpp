// Compiled by bench/peers/deepspeed together with DeepSpeed's csrc/adam/cpu_adam_impl.cpp, not by
// the project's own build.
#include "bench/peers/deepspeed_adam.h"

#include <ATen/ATen.h>

#include <cpu_adam.h>

extern "C" __attribute__((visibility("default"))) void tidepool_deepspeed_adam_step(
    const tidepool::bench::DeepSpeedAdamCall& call) {
  static const int kCreated = create_adam_optimizer(0, 1e-3F, 0.9F, 0.999F, 1e-8F, 0,
                                                    /*adamw_mode=*/true, /*should_log=*/false);
  const auto view = [&](float* data) {
    return at::from_blob(data, {static_cast<int64_t>(call.count)},
                         at::TensorOptions().dtype(at::kFloat));
  };

  at::Tensor master = view(call.master), gradient = view(call.gradient),
             momentum = view(call.momentum), variance = view(call.variance);
  ds_adam_step(kCreated, call.step, static_cast<float>(call.lr), 0.9F, 0.999F, 1e-8F,
               static_cast<float>(call.weight_decay),
               /*bias_correction=*/true, master, gradient, momentum, variance);
}
