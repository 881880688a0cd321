// From a model's parameters and the user's options to what is asked of the server: chunk layout,
// rCache size, job spec.
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
  uint64_t bytes = 0;            // of each rank's rCache memory, resident chunks included
  uint64_t resident_bytes = 0;   // fixed room of resident chunks
  uint64_t evictable_bytes = 0;  // of all chunks that compete for the blocks
  uint64_t block_bytes = 0;
  uint64_t blocks = 0;
  uint64_t tail_bytes = 0;  // of `bytes`, at the end: sums of gradients of a pipelined run
  // The share of evictable bytes that the blocks hold.
  double fraction() const {
    return evictable_bytes > 0
               ? static_cast<double>(blocks * block_bytes) / static_cast<double>(evictable_bytes)
               : 1;
  }
};

// "25%": that share of the evictable chunks' bytes, to the nearest number of whole blocks; a size:
// all of the rCache, resident chunks included, never exceeded. Never more blocks than chunks.
// `tail_bytes` more are at the end, of a size too. Errors: kConfigBadValue, kRcacheTooSmall.
Result<RcachePlan> PlanRcache(const ChunkLayout& layout, Rank rank, const std::string& rcache,
                              uint64_t tail_bytes = 0);
// The rCache of a run that goes through stages: room for the weights of the largest stage at least.
// A share is raised to what two stages that follow each other need, so that the next one can come
// while one computes; a size is never exceeded. As the rank of `stages` needs it. Errors:
// kConfigBadValue, kRcacheTooSmall.
Result<RcachePlan> PlanStagedRcache(const ChunkLayout& layout, const StagePlan& stages,
                                    const std::string& rcache);
// The smallest size that it takes.
uint64_t LeastStagedRcache(const ChunkLayout& layout, const StagePlan& stages);

// The dtype named by --dtype. Errors: kUsageError.
Result<DType> DTypeFromName(const std::string& name);

// The update rule and the form of its states, as the flags say (names that nobody checked become
// the defaults). `seed`: the run's, for forms that round by chance.
OptimizerSpec MakeOptimizerSpec(const OptimizerOptions& options, uint64_t seed);

// The learning rate of each step. Errors: kConfigBadValue (an unknown schedule).
Result<optim::ScheduleSpec> ScheduleOf(const TrainingOptions& options);

// What the server must know. `name`: of the job. The content of frozen chunks is not known here:
// their names are zeros.
client::JobSpec MakeJobSpec(const ChunkLayout& layout, const RunOptions& options,
                            const RcachePlan& rcache, const std::string& name);

}  // namespace tidepool::trainer
