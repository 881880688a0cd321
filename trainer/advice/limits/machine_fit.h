// Whether a run fits this machine, as the last lines of `trainer estimate` say: host memory, the
// GPU, the drive, and the activations of its batch.
//
// Any thread; torch-free; pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "trainer/advice/device_memory.h"
#include "trainer/advice/host_fit.h"
#include "trainer/advice/limits/run_limits.h"

namespace tidepool::trainer {

// "fits      this machine: no: ...", and a line per change that would fit. `gpu`: null where ranks
// compute on the host; `limits`: null if unknown; `batch`: of the run.
std::string DescribeVerdict(const HostFit& fit, const GpuEstimate* gpu, const RunLimits* limits,
                            uint64_t batch);

}  // namespace tidepool::trainer
