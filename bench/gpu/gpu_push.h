// Chunks between a memserver's pool and GPU memory that this process has brought, as in a trainer:
// compared with plain copies of the same sizes, and beside this process's matrix products.
//
// One thread, and one more that multiplies matrices; any failure ends the program.
#pragma once

#include "bench/gpu/gpu_copies.h"
#include "bench/harness/row.h"

namespace tidepool::bench {

// Prints the rows for both directions, alone and concurrent with products.
void MeasurePush(const GpuSetup& setup, RowPrinter* printer);

}  // namespace tidepool::bench
