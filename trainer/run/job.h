// Derives chunk layout, rCache size and job spec from a model's parameters and the user's options.
//
// Any thread; pure functions. Every rank computes the same layout from the same options.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "client/job_spec.h"
#include "optim/schedule.h"
#include "trainer/layout/build_layout.h"
#include "trainer/layout/chunk_layout.h"
#include "trainer/pipeline/stage_plan.h"
#include "trainer/run/run_options.h"

namespace tidepool::trainer {

// How the rCache is divided.
struct RcachePlan {
  uint64_t bytes = 0;            // each rank's rCache memory, resident chunks included
  uint64_t resident_bytes = 0;   // fixed space of resident chunks
  uint64_t evictable_bytes = 0;  // total of all chunks that share the blocks
  uint64_t block_bytes = 0;
  uint64_t blocks = 0;
  uint64_t tail_bytes = 0;  // at the end of `bytes`: gradient sums of a pipelined run
  // The fraction of the evictable bytes that the blocks hold.
  double fraction() const {
    return evictable_bytes > 0
               ? static_cast<double>(blocks * block_bytes) / static_cast<double>(evictable_bytes)
               : 1;
  }
};

// `rcache` "25%": that share of the evictable chunks' bytes, rounded to whole blocks; a size: a
// limit on the whole rCache, resident chunks included. Never more blocks than chunks. `tail_bytes`
// are added at the end (within the limit, for a size). Errors: kConfigBadValue, kRcacheTooSmall.
Result<RcachePlan> PlanRcache(const ChunkLayout& layout, Rank rank, const std::string& rcache,
                              uint64_t tail_bytes = 0);
// The rCache of a pipelined run, for the rank of `stages`: at least the weights of the largest
// stage. A share is raised to two consecutive stages, so that the next one can be fetched while one
// computes; a size is never exceeded. Errors: kConfigBadValue, kRcacheTooSmall.
Result<RcachePlan> PlanStagedRcache(const ChunkLayout& layout, const StagePlan& stages,
                                    const std::string& rcache);
// The smallest size that PlanStagedRcache accepts.
uint64_t LeastStagedRcache(const ChunkLayout& layout, const StagePlan& stages);

// The dtype named by --dtype. Errors: kUsageError.
Result<DType> DTypeFromName(const std::string& name);

// The update rule and the form of its states from the flags (unchecked bad names become the
// defaults). `seed`: the run's seed, for forms with stochastic rounding.
OptimizerSpec MakeOptimizerSpec(const OptimizerOptions& options, uint64_t seed);

// The learning rate of each step. Errors: kConfigBadValue (an unknown schedule).
Result<optim::ScheduleSpec> ScheduleOf(const TrainingOptions& options);

// The job specification for the server. `name`: the job's. The content of frozen chunks is not
// known yet: their names are zeros.
client::JobSpec MakeJobSpec(const ChunkLayout& layout, const RunOptions& options,
                            const RcachePlan& rcache, const std::string& name);

}  // namespace tidepool::trainer
