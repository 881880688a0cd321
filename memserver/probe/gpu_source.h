// CudaGpus: the GPUs of this machine by the CUDA driver, as a source for GpuTable; and their
// description for people.
//
// Any thread. The first query starts the driver (up to a second if there are GPUs; immediate
// without a driver).
#pragma once

#include <optional>
#include <string>

#include "base/clock.h"
#include "memserver/traffic/gpu.h"

namespace tidepool::memserver {

// `done`: who writes the done words of fetches; none: chosen by measuring (done_probe.h). `clock`
// outlives the source.
GpuSource CudaGpus(std::optional<DoneBy> done, Clock* clock);

// One line: "none (--gpu none)", "none: the CUDA driver is not there", "0: NVIDIA H200
// (GPU-6c3e...), 141.00 GB, exports vmm; ...".
std::string GpusLine(const GpuSource& source);
// Describes one GPU and what it lacks; empty if nothing.
std::string Text(const device::Gpu& gpu);
std::string WhatItLacks(const device::Gpu& gpu);

}  // namespace tidepool::memserver
