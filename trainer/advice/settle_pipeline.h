// SettlePipeline: what `trainer estimate --pipeline` advises, and the stages of `trainer run
// --pipeline`: reads the machine, profiles one block of the model, plans, and writes the files that
// were asked for.
//
// The trainer's main thread; no other thread may use LibTorch meanwhile (the profile does).
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "trainer/launch/rank_place.h"
#include "trainer/run/run_options.h"

namespace tidepool::trainer {

// What is said on stdout: a table, or with --json an object. `ranks`: 0 where nobody said how many.
// Errors: kUsageError (flags that contradict each other), kConfigBadValue, kFileWriteFailed; those
// of MakeRunPlan, ReadTopology, ProfileStep and AdvisePipeline.
Result<std::string> SettlePipeline(const RunOptions& options, uint32_t ranks, const Clock* clock);

// Fills in the stages of a run (PipelineOptions::ends) where --pipeline was given; with auto as
// many as make the shortest step, or more, where the rCache that was given has no room for so few.
// Errors: those of CheckPipelineRun, MakeRunPlan, ReadTopology, ProfileStep and AdvisePipeline.
Status SettleStages(RunOptions* options, const RankPlace& place);

}  // namespace tidepool::trainer
