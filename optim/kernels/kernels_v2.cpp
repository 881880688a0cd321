#include "optim/kernels/array_loop.h"
#include "optim/kernels/kernel_tables.h"
#include "optim/kernels/update_loop.h"

// Compiled for x86-64-v2 (optim/CMakeLists.txt); only the table is visible outside this file.
namespace tidepool::optim {

const Kernels kV2Kernels = {IsaLevel::kV2, Update, Scan, Accumulate, Narrow, Widen, Copy};

}  // namespace tidepool::optim
