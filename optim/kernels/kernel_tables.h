// The four kernel tables by name. For optim/kernels/kernels.cpp only: calling a function of a level
// that the CPU lacks ends the process.
//
// Any thread; constants.
#pragma once

#include "optim/kernels/kernel_set.h"

namespace tidepool::optim {

extern const Kernels kScalarKernels;  // update_scalar.cpp
extern const Kernels kV2Kernels;      // kernels_v2.cpp
extern const Kernels kV3Kernels;      // kernels_v3.cpp
extern const Kernels kV4Kernels;      // kernels_v4.cpp

}  // namespace tidepool::optim
