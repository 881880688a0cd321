// Kernels: a table of the loops over flat arrays for one instruction set; kernels.h states their
// contract.
//
// Any thread; a plain value.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "optim/gradient_norm.h"
#include "optim/kernels/isa.h"
#include "optim/update_span.h"

namespace tidepool::optim {

// One update of all elements of `span`; no undo (see optim/undo_tile.h for the crash-safe form).
// Gradients have the type of the parameters, or are fp32 sums.
using UpdateKernel = void (*)(const StepFactors& factors, const UpdateSpan& span);

struct Kernels {
  IsaLevel isa;
  UpdateKernel update;
  // Scans the raw gradient of ONE parameter, from its start.
  ScanResult (*scan_gradient)(const void* gradient, DType dtype, uint64_t count);
  // sum[i] += addend[i].
  void (*accumulate_gradient)(float* sum, const void* addend, DType dtype, uint64_t count);
  // to[i] = from[i], rounded to `to_dtype` (kBF16 or kF16).
  void (*narrow)(void* to, DType to_dtype, const float* from, uint64_t count);
  // to[i] = from[i], exact; also for kF32.
  void (*widen)(float* to, const void* from, DType from_dtype, uint64_t count);
  // Copies bytes, for short ranges that do not overlap.
  void (*copy)(void* to, const void* from, uint64_t bytes);
};

}  // namespace tidepool::optim
