// SetAsideEarlier: metrics.jsonl of an earlier run is kept under another name before a new run
// writes.
//
// Any thread of rank 0's process; reads the end of the file alone.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace tidepool::trainer {

// A run is about to write DIR/metrics.jsonl behind step `sealed` (0: it begins at step 1). Where
// the last whole line there is of another run, that is: names a later step, or no step at all, the
// file goes to DIR/metrics.1.jsonl (or the next free number) whole; with `sealed` > 0 what is
// needed of it stays as well. Line of step 0 alone: nothing was trained, nothing is kept. The name
// that it went to, empty where nothing had to. Errors: kFileWriteFailed.
Result<std::string> SetAsideEarlier(const std::string& directory, uint64_t sealed);

}  // namespace tidepool::trainer
