// AutoRcache: the rCache size of a module's job: given by the user, taken from the existing job, or
// computed from a profile.
//
// The program's main thread. The GPU's memory is queried once, before there is a plan, so that
// every plan of a job gets the same size.
#pragma once

#include <cstdint>
#include <optional>

#include "base/formats/optimizer.h"
#include "base/status.h"
#include "trainer/advice/settle_rcache.h"
#include "trainer/launch/rank_place.h"
#include "trainer/layout/chunk_layout.h"
#include "trainer/profile/step_recorder.h"
#include "trainer/run/job.h"
#include "trainer/run/run_options.h"

namespace tidepool::trainer {

// Inputs besides the run's options.
struct AutoRcache {
  const StepProfile* profile = nullptr;  // may be null
  std::optional<DeviceMemory> memory;    // of the rank's GPU, if queried
  uint64_t held_bytes = 0;               // of the job at the server; 0: none
  OptimizerSpec optimizer;
};

// The memory of the rank's GPU; nullopt on the host, with several ranks (each may find different
// use, but all need the same size), and if the GPU cannot be queried.
std::optional<DeviceMemory> MemoryToPlan(const RunOptions& run, const RankPlace& place);

// "auto" is, in this order: the size of the existing job; on a GPU what fits beside activations, by
// ChooseRcache; on the host the result of ChooseHostBlocks, plus two blocks to prefetch into; else
// a quarter of the evictable bytes, also if the profile has no arithmetic. The last two are at
// least 64 MiB and four chunks. Several ranks use the quarter: their profiles may differ, their
// rCaches must not. Errors: those of PlanRcache.
Result<RcachePlan> PlanModuleRcache(const ChunkLayout& layout, const RunOptions& run,
                                    const RankPlace& place, const AutoRcache& what);

}  // namespace tidepool::trainer
