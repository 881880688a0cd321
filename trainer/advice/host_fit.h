// Whether a run fits into this machine's host memory, and how to make it fit: the last lines of
// `trainer estimate`, and the error for a private memserver that does not fit.
//
// Any thread; torch-free; pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/system/system_memory.h"
#include "base/units.h"
#include "trainer/advice/limits/drive_room.h"
#include "trainer/run/run_plan.h"

namespace tidepool::trainer {

// Host memory that memserver leaves to the rest of the machine by default.
inline constexpr uint64_t kHostLeftBytes = 256 * kMiB;

// Additional flags, and the host memory that the run takes with them.
struct WayToFit {
  std::string flags;
  uint64_t bytes = 0;
  uint64_t drive_bytes = 0;  // 0: no drive
};

// Host memory that a run needs, without activations, and what is available.
struct HostFit {
  uint64_t bytes = 0;  // the pool, and the rCaches of ranks on the host
  MemoryBudget there;
  DriveRoom drive;  // the largest one; without a path it is taken to be large enough
  bool fits = false;
  // If it does not fit: changes that make it fit, smallest first; or the one that needs least.
  std::vector<WayToFit> ways;
};

// `options` are those of `plan`; `on_host`: the ranks compute on the CPU.
HostFit JudgeHost(const RunOptions& options, const RunPlan& plan, bool on_host,
                  const MemoryBudget& there, const DriveRoom& drive = {});

// "fits      this machine: no: 158 GiB of host memory are needed, ...", and a line per way.
std::string DescribeFit(const HostFit& fit);

// Checks that a memserver with a pool of this size can start. Errors: kHostMemoryShort.
Status CheckPrivatePool(uint64_t pool_bytes, const MemoryBudget& there);

}  // namespace tidepool::trainer
