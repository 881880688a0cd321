// ModuleWay: how a module's job holds its weights: by its option `plan`, or else by the size of its
// rCache alone.
//
// The program's main thread; pure. ddp and zero2 have a block for each chunk; zero3 has the fewest
// in which a profiled step runs, and two to prefetch into (trainer/plan/presets.h). With a plan, a
// given rcache is a limit.
#pragma once

#include "base/status.h"
#include "trainer/launch/rank_place.h"
#include "trainer/layout/chunk_layout.h"
#include "trainer/module/auto_rcache.h"
#include "trainer/plan/traffic.h"
#include "trainer/run/job.h"
#include "trainer/run/run_options.h"

namespace tidepool::trainer {

struct ModuleWay {
  RcachePlan rcache;
  Exchange exchange = Exchange::kSharded;
};

// Plan "auto" takes as many blocks as save bytes, within the limit; without a limit it is rcache
// "auto". Errors: those of PlanModuleRcache, kUsageError (zero3 without a profile, or no such
// plan), kRcacheTooSmall (the limit; with the size that would fit).
Result<ModuleWay> PlanModuleWay(const ChunkLayout& layout, const RunOptions& run,
                                const RankPlace& place, const AutoRcache& what);

}  // namespace tidepool::trainer
