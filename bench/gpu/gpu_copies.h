// What a GPU's links, its driver and our own memory can do before any memserver runs: what
// `bench gpu` measures first.
//
// One thread; any failure ends the program.
#pragma once

#include "bench/harness/row.h"
#include "device/cuda/cuda_device.h"

namespace tidepool::bench {

// The device, and how much is measured.
struct GpuSetup {
  device::CudaDevice* device = nullptr;
  uint64_t copy_bytes = 0;  // copied by each measurement, in copies of each size
  uint64_t pool_bytes = 0;  // of the pool whose start is timed
  uint64_t adam_elements = 0;
  uint64_t rounds = 0;
};

// Copies of 64 KiB to 256 MiB to the GPU, from it, and both at once: registered pool memory against
// memory of cuMemHostAlloc.
void MeasureCopies(const GpuSetup& setup, RowPrinter* printer);
// Seconds a GiB until a pool can be copied from: reserved, touched and registered, against
// cuMemHostAlloc.
void MeasurePoolStart(const GpuSetup& setup, RowPrinter* printer);
// The Adam kernel against a copy inside the GPU, by bytes read and written.
void MeasureAdam(const GpuSetup& setup, RowPrinter* printer);

}  // namespace tidepool::bench
