// Whether a run fits into this machine's host memory, and what would make it fit: the last lines of
// `trainer estimate`, and the one error of a private memserver that there is no room for.
//
// Any thread; torch-free; pure functions of what they are given.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/system/system_memory.h"
#include "trainer/run/run_plan.h"

namespace tidepool::trainer {

// Flags beside those that were given, and the host memory that the run takes with them.
struct WayToFit {
  std::string flags;
  uint64_t bytes = 0;
};

// What a run takes of the host, beside its activations, and what there is.
struct HostFit {
  uint64_t bytes = 0;  // the pool, and the rCaches of ranks that compute on the host
  MemoryBudget there;
  bool fits = false;
  // Where it does not fit: what would, the least change first; or the smallest that there is.
  std::vector<WayToFit> ways;
};

// `options` are those that `plan` was made of; `on_host`: the ranks compute on the CPUs.
HostFit JudgeHost(const RunOptions& options, const RunPlan& plan, bool on_host,
                  const MemoryBudget& there);

// "fits      no: 158 GiB of host memory are needed, ...", and a line for each way.
std::string DescribeFit(const HostFit& fit);

// Whether a memserver with such a pool can start. Errors: kHostMemoryShort.
Status CheckPrivatePool(uint64_t pool_bytes, const MemoryBudget& there);

}  // namespace tidepool::trainer
