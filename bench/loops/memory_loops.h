// MemoryLoops: the plain loops used as baselines: what the memory can do (read, read-modify-write,
// copy), and the optimizer passes of other systems. Compiled for AVX-512 and AVX2; the product's
// own loops are in optim/ and device/.
//
// Any thread; no state. Ranges do not overlap. Written to be as fast as plain code gets, because a
// slow baseline proves nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "optim/kernels/isa.h"

namespace tidepool::bench {

// Parameters of an Adam step with decoupled weight decay, as folded in DeepSpeed's CPUAdam.
struct PeerAdam {
  float beta1 = 0.9F, beta2 = 0.999F;
  float step_size = 0;           // -lr / (1 - beta1^t)
  float inverse_sqrt_bias2 = 0;  // 1 / sqrt(1 - beta2^t)
  float eps = 1e-8F;
  float weight_step = 0;  // -lr * weight decay
};
// The parameters for the 1-based `step`.
PeerAdam MakePeerAdam(double lr, double weight_decay, uint64_t step);

// The loops of one instruction set.
struct MemoryLoops {
  optim::IsaLevel isa;
  // Sum of 64-bit words.
  uint64_t (*read)(const std::byte* from, uint64_t bytes);
  // Changes every word in place: the limit of an update. `ahead`: bytes of software prefetch, 0 for
  // none.
  void (*modify)(std::byte* data, uint64_t bytes, uint64_t ahead);
  void (*copy_plain)(std::byte* to, const std::byte* from, uint64_t bytes);
  // Copies with non-temporal stores; `to` is aligned to 64 bytes. `ahead` as above.
  void (*copy_streaming)(std::byte* to, const std::byte* from, uint64_t bytes, uint64_t ahead);
  // One pass each of DeepSpeed's host path for ZeRO-3 offload: grad.mul_(1 / scale); the fp32 step;
  // the bf16 copy of the parameters.
  void (*scale)(float* values, float factor, uint64_t count);
  // `planes`: master, momentum, variance.
  void (*adam)(const PeerAdam& numbers, float* const* planes, const float* gradient,
               uint64_t count);
  void (*narrow)(uint16_t* to, const float* from, uint64_t count);
};

// The loops of this CPU's best level; ends the program on a CPU without AVX2.
const MemoryLoops& SelectLoops();

}  // namespace tidepool::bench
