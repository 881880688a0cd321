// What a run writes, looked at before anything is started: what cannot be written is told before
// the first step, not behind the last one.
//
// Any thread; torch-free.
#pragma once

#include "base/status.h"
#include "trainer/data/own_outputs.h"
#include "trainer/run/run_options.h"

namespace tidepool::trainer {

// Where a run writes.
OutputPlaces OutputsOf(const OutputOptions& output);

// Could --out, --save and --trace be written? Nothing is made. Errors: kFileWriteFailed (names the
// flag).
Status CheckOutputs(const OutputOptions& output);
// Makes the directories and the trace file. What a run before has written stays until this one has
// something better. Errors: the same.
Status PrepareOutputs(const OutputOptions& output);

}  // namespace tidepool::trainer
