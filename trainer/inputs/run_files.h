// Checks a run's outputs before anything is started: an unwritable path is reported before the
// first step, not after the last one.
//
// Any thread; torch-free.
#pragma once

#include "base/status.h"
#include "trainer/data/own_outputs.h"
#include "trainer/run/run_options.h"

namespace tidepool::trainer {

// The paths that a run writes to.
OutputPlaces OutputsOf(const OutputOptions& output);

// Checks that --out, --save and --trace can be written. Creates nothing. Errors: kFileWriteFailed
// (names the flag).
Status CheckOutputs(const OutputOptions& output);
// Creates the directories and the trace file. Files of an earlier run stay until this run replaces
// them. Errors: as CheckOutputs.
Status PrepareOutputs(const OutputOptions& output);

}  // namespace tidepool::trainer
