// AutoRcache: how large the rCache of a module's job is: as the user says, as the job has it
// already, or by a profile.
//
// The program's main thread. The room of a GPU is asked for once, before there is a plan, so that
// every plan of a job comes to the same size.
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

// Beside the options of the run.
struct AutoRcache {
  const StepProfile* profile = nullptr;  // may be null
  std::optional<DeviceMemory> memory;    // of the rank's GPU, where it was asked
  uint64_t held_bytes = 0;               // of the job that the server holds; 0: none
  OptimizerSpec optimizer;
};

// The memory of the GPU that the rank computes on; none on the host, with several ranks (each may
// find something else in use, and all must come to the same size), and where no GPU can be asked.
std::optional<DeviceMemory> MemoryToPlan(const RunOptions& run, const RankPlace& place);

// "auto" is, in this order: what the job has; on a GPU what fits beside activations, as
// ChooseRcache decides; on the host what ChooseHostBlocks says, and two blocks to fetch ahead into;
// else a quarter of what can be evicted, also where the profile knows no arithmetic. The last two
// are at least 64 MiB and four chunks. Profiles of several ranks may differ, and their rCaches must
// not: they have the quarter.
// Errors: those of PlanRcache.
Result<RcachePlan> PlanModuleRcache(const ChunkLayout& layout, const RunOptions& run,
                                    const RankPlace& place, const AutoRcache& what);

}  // namespace tidepool::trainer
