// The remaining host memory bandwidth while both copy engines of a GPU run: the rate at which an
// update could change memory in place.
//
// One thread and one on each other CPU; any failure ends the program.
#pragma once

#include "bench/gpu/gpu_copies.h"
#include "bench/harness/row.h"

namespace tidepool::bench {

// Prints the rows.
void MeasureMemoryBeside(const GpuSetup& setup, RowPrinter* printer);

}  // namespace tidepool::bench
