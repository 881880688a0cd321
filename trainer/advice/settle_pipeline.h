// SettlePipeline: the advice of `trainer estimate --pipeline`, and the stages of `trainer run
// --pipeline`: reads the machine's topology, profiles one block of the model, plans, and writes the
// requested files.
//
// The trainer's main thread; no other thread may use LibTorch at the same time (the profile does).
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "trainer/launch/rank_place.h"
#include "trainer/run/run_options.h"

namespace tidepool::trainer {

// Returns the text for stdout: a table, or an object with --json. `ranks`: 0 if not given. Errors:
// kUsageError (contradictory flags), kConfigBadValue, kFileWriteFailed; those of MakeRunPlan,
// ReadTopology, ProfileStep and AdvisePipeline.
Result<std::string> SettlePipeline(const RunOptions& options, uint32_t ranks, const Clock* clock);

// Sets the stages of a run (PipelineOptions::ends) if --pipeline was given. auto takes the number
// with the shortest step, or more if a given rCache is too small for it. Errors: those of
// CheckPipelineRun, MakeRunPlan, ReadTopology, ProfileStep and AdvisePipeline.
Status SettleStages(RunOptions* options, const RankPlace& place);

}  // namespace tidepool::trainer
