// Fetches while the GPU computes for another process: copy rate of chunks, and latency until a
// trainer's GPU sees the `done` word, with either writer of it (memserver run --gpu-done).
//
// One thread, and one more that multiplies matrices; any failure ends the program.
#pragma once

#include "bench/gpu/gpu_copies.h"
#include "bench/harness/row.h"

namespace tidepool::bench {

// Prints the rows for both writers.
void MeasureDone(const GpuSetup& setup, RowPrinter* printer);

}  // namespace tidepool::bench
