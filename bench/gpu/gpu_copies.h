// The capabilities of a GPU's links, its driver and our own memory without a memserver: the first
// measurements of `bench gpu`.
//
// One thread; any failure ends the program.
#pragma once

#include "bench/harness/row.h"
#include "device/cuda/cuda_device.h"

namespace tidepool::bench {

// The device, and the amounts to measure.
struct GpuSetup {
  device::CudaDevice* device = nullptr;
  uint64_t copy_bytes = 0;  // per measurement, in copies of each size
  uint64_t pool_bytes = 0;  // size of the pool whose start is timed
  uint64_t adam_elements = 0;
  uint64_t rounds = 0;
};

// Copies of 64 KiB to 256 MiB to the GPU, from it, and in both directions: registered pool memory
// compared with cuMemHostAlloc.
void MeasureCopies(const GpuSetup& setup, RowPrinter* printer);
// Seconds per GiB until a pool can be a copy source: reserved, touched and registered, compared
// with cuMemHostAlloc.
void MeasurePoolStart(const GpuSetup& setup, RowPrinter* printer);
// The Adam kernel compared with a copy inside the GPU, by bytes read and written.
void MeasureAdam(const GpuSetup& setup, RowPrinter* printer);

}  // namespace tidepool::bench
