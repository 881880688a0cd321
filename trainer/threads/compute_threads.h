// UseThreads: how many threads an operator of LibTorch gets in this process, settled once: sums,
// and so bits, depend on it.
//
// The main thread, before the first operator.
#pragma once

#include <cstdint>

namespace tidepool::trainer {

// `wanted` threads; 0: this process's share of the CPUs, of which `local_ranks` (at least 1)
// processes like it make use. Returns how many.
uint32_t UseThreads(uint32_t wanted, uint32_t local_ranks);

}  // namespace tidepool::trainer
