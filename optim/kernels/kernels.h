// SelectKernels: the loops over flat arrays (update, gradient scan, accumulation, conversion) of
// one instruction set, as a table of functions.
//
// Any thread; the tables are constant and the functions keep no state. Invariants:
// 1. Every level gives the same bits for the same input, including denormals, if the threads run in
//    the same float mode (optim/kernels/float_mode.h); all NaNs count as equal, because the CPU
//    chooses which operand's payload survives.
// 2. An element's result depends on that element alone (8-bit states: on its scale block;
//    stochastic rounding: also on its index in its parameter), never on `count`: a range may be
//    split anywhere; with 16- and 8-bit moments, at multiples of kScaleBlockElements.
// 3. No loop reads or writes outside the given counts, or allocates.
// Conversions round to nearest even; fp16 overflows to inf and has gradual underflow even where
// FTZ|DAZ is on; a NaN stays a (quiet) NaN.
#pragma once

#include "optim/kernels/kernel_set.h"

namespace tidepool::optim {

// The table of `level`, or of BestIsa() if this CPU lacks `level` (its `isa` tells which).
const Kernels& SelectKernels(IsaLevel level);

}  // namespace tidepool::optim
