// RunPlan: what a run will be, known before anything is started: shape, layout, rCache, job, memory by tier. What `trainer estimate` and
// `trainer run --dry-run` show.
//
// Any thread; torch-free; pure but for reading the memory that the machine has.
#pragma once

#include <string>

#include "base/status.h"
#include "client/job_spec.h"
#include "trainer/job.h"
#include "trainer/layout/chunk_layout.h"
#include "trainer/model/gpt_shape.h"
#include "trainer/plan/estimate.h"
#include "trainer/run_options.h"

namespace tidepool::trainer {

struct RunPlan {
  GptShape shape;
  ChunkLayout layout;
  RcachePlan rcache;
  client::JobSpec spec;
  MemoryEstimate memory;
};

// `world` ranks, seen from `rank`. Errors: kUsageError (preset, dtype, context), kConfigBadValue (sizes), kParameterTooLarge,
// kRcacheTooSmall.
Result<RunPlan> MakeRunPlan(const RunOptions& options, uint32_t world, Rank rank, const std::string& job);
// The same for a shape that is no preset.
Result<RunPlan> MakeRunPlan(const GptShape& shape, const RunOptions& options, uint32_t world, Rank rank, const std::string& job);

// Several lines for people, with the reason of every choice.
std::string DescribePlan(const RunPlan& plan);
// One JSON object.
std::string PlanJson(const RunPlan& plan);

}  // namespace tidepool::trainer
