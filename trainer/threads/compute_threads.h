// UseThreads: sets the number of threads of LibTorch's operators in this process, once: sums, and
// hence bits, depend on it.
//
// The main thread, before the first operator.
#pragma once

#include <cstdint>

namespace tidepool::trainer {

// `wanted` threads; 0: this process's share of the CPUs among `local_ranks` (at least 1) such
// processes. Returns the number.
uint32_t UseThreads(uint32_t wanted, uint32_t local_ranks);

}  // namespace tidepool::trainer
