// Chunks between a memserver's pool and the memory of a GPU that this process brought, as a trainer
// has them: against plain copies of the same sizes, and beside matrix products of this process.
//
// One thread, and one more that multiplies; any failure ends the program.
#pragma once

#include "bench/gpu/gpu_copies.h"
#include "bench/harness/row.h"

namespace tidepool::bench {

// Prints the rows of both directions, alone and beside products.
void MeasurePush(const GpuSetup& setup, RowPrinter* printer);

}  // namespace tidepool::bench
