// Kernels: the loops over flat arrays (update, gradient scan, accumulation, conversion) of one
// instruction set, as a table of functions.
//
// Any thread; the tables are constant and the functions keep no state. Invariants:
// 1. Every level gives the same bits for the same input, denormals included, as long as the threads
//    run in the same float mode (optim/kernels/float_mode.h); all NaNs count as equal, for the CPU
//    chooses which operand's payload lives on.
// 2. An element's result depends on that element alone (8-bit states: on its scale block;
//    stochastic rounding: on its place in its parameter too), never on `count`: a range may be cut
//    anywhere, that of 16- and 8-bit moments at multiples of kScaleBlockElements.
// 3. No loop reads or writes outside the given counts; nothing is allocated.
// Conversions round to nearest even; fp16 overflows to inf and has gradual underflow even where
// FTZ|DAZ is on; a NaN stays a (quiet) NaN.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "optim/gradient_norm.h"
#include "optim/kernels/isa.h"
#include "optim/update_rule.h"

namespace tidepool::optim {

// One update of all elements of `span`; no undo (see optim/undo_tile.h for the crash-safe form).
// Gradients have the type of the parameters, or are fp32 sums.
using UpdateKernel = void (*)(const StepFactors& factors, const UpdateSpan& span);

struct Kernels {
  IsaLevel isa;
  UpdateKernel update;
  // The raw gradient of ONE parameter, from its start.
  ScanResult (*scan_gradient)(const void* gradient, DType dtype, uint64_t count);
  // sum[i] += addend[i].
  void (*accumulate_gradient)(float* sum, const void* addend, DType dtype, uint64_t count);
  // to[i] = from[i], rounded to `to_dtype` (kBF16 or kF16).
  void (*narrow)(void* to, DType to_dtype, const float* from, uint64_t count);
  // to[i] = from[i], exact; also for kF32.
  void (*widen)(float* to, const void* from, DType from_dtype, uint64_t count);
  // Bytes, for short ranges that do not overlap.
  void (*copy)(void* to, const void* from, uint64_t bytes);
};

// The table of `level`, or of BestIsa() where this CPU lacks `level` (look at `isa` to learn
// which).
const Kernels& SelectKernels(IsaLevel level);

}  // namespace tidepool::optim
