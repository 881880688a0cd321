// UseThreads, UseFastestThreads: set the number of threads of LibTorch's operators in this process:
// sums, and hence bits, depend on it.
//
// The main thread. A training run sets it once, before the first operator.
#pragma once

#include <cstdint>
#include <functional>

#include "base/clock.h"

namespace tidepool::trainer {

// `wanted` threads; 0: this process's share of the CPUs among `local_ranks` (at least 1) such
// processes. Returns the number.
uint32_t UseThreads(uint32_t wanted, uint32_t local_ranks);
// The number with which `work` is fastest on this machine now, by trials (thread_trial.h). Returns
// it.
uint32_t UseFastestThreads(const std::function<void()>& work, const Clock* clock);

}  // namespace tidepool::trainer
