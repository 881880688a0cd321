// Checks where a run will write, before anything is started: what cannot be written is told before
// the first step, not after the last one.
//
// Any thread; torch-free.
#pragma once

#include "base/status.h"
#include "trainer/data/own_outputs.h"
#include "trainer/run/run_options.h"

namespace tidepool::trainer {

// Where a run writes.
OutputPlaces OutputsOf(const OutputOptions& output);

// Checks that --out, --save and --trace can be written. Makes nothing. Errors: kFileWriteFailed
// (names the flag).
Status CheckOutputs(const OutputOptions& output);
// Makes the directories and the trace file. Files of an earlier run stay until this run replaces
// them. Errors: the same.
Status PrepareOutputs(const OutputOptions& output);

}  // namespace tidepool::trainer
