// The Adam and AdamW update rules (torch's definitions) as numbers: what a job, a step and a parameter group contribute, the factors that
// the loops use, and the planes that they work on.
//
// Any thread; plain values. Rule, per element, with g = raw gradient * gradient_scale and t = optimizer_step:
//   AdamW: p -= lr * wd * p.      Adam: g += wd * p.
//   m = b1 * m + (1 - b1) * g;    v = b2 * v + (1 - b2) * g * g
//   p -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)
// (Kingma and Ba 2015, algorithm 1; Loshchilov and Hutter 2019, algorithm 2.) Factors are computed in double, elements in fp32.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/status.h"

namespace tidepool::optim {

// Fixed for a job. Doubles, because 1 - 0.999f is 5e-5 off the 0.001 that torch uses.
struct AdamSpec {
  bool decoupled = true;  // AdamW; false: Adam with weight decay added to the gradient
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
};

// The same for all parameters of one step; part of the step record.
struct StepScalars {
  double lr = 0;
  uint64_t optimizer_step = 1;  // 1-based; steps skipped for an overflow do not count
  float gradient_scale = 1;     // clip factor / loss scale: multiplied into each raw gradient (the sum over micro-batches)
};

// A parameter group's share.
struct GroupScalars {
  double lr_scale = 1;
  double weight_decay = 0;
};

// What a loop needs, rounded once to fp32. Made by MakeAdamFactors, one per step and group.
struct AdamFactors {
  bool decoupled;
  float gradient_scale;
  float decay;  // AdamW: 1 - lr * weight_decay, else 1
  float l2;     // Adam: weight_decay, else 0
  float beta1, one_minus_beta1;
  float beta2, one_minus_beta2;
  float inverse_sqrt_bias2;  // 1 / sqrt(1 - beta2^t)
  float eps;
  float step_size;  // lr / (1 - beta1^t)
};

// Ok if betas lie in [0, 1) and eps is positive and finite. Errors: kConfigBadValue.
Status CheckAdamSpec(const AdamSpec& spec);
// Requires a checked spec, finite scalars and optimizer_step >= 1.
AdamFactors MakeAdamFactors(const AdamSpec& spec, const StepScalars& step, const GroupScalars& group);

// Equal element ranges of the planes of one chunk. The caller owns the memory; planes do not overlap. The fp32 planes start at a multiple
// of 64 B, the 16-bit ones at a multiple of 32 B (the same element of a plane that starts at 64 B); slower, but right, otherwise.
struct UpdateSpan {
  float* master = nullptr;         // fp32[count], changed
  float* momentum = nullptr;       // fp32[count], changed
  float* variance = nullptr;       // fp32[count], changed
  const void* gradient = nullptr;  // gradient_dtype[count], only read: it is the redo log
  DType gradient_dtype = DType::kF32;
  void* param16 = nullptr;             // param16_dtype[count], written: the new master rounded; null: none
  DType param16_dtype = DType::kBF16;  // kBF16 or kF16
  uint64_t count = 0;
};

// Elements [first, first + count) of `span`, which must lie inside it.
UpdateSpan Slice(const UpdateSpan& span, uint64_t first, uint64_t count);

}  // namespace tidepool::optim
