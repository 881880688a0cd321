// Fetches while the GPU computes for another process than memserver: how fast chunks are copied,
// and how late a trainer's GPU hears of it, with either writer of the `done` word (memserver run
// --gpu-done).
//
// One thread, and one more that multiplies; any failure ends the program.
#pragma once

#include "bench/gpu/gpu_copies.h"
#include "bench/harness/row.h"

namespace tidepool::bench {

// Prints the rows of both writers.
void MeasureDone(const GpuSetup& setup, RowPrinter* printer);

}  // namespace tidepool::bench
