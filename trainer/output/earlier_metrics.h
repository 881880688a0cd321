// SetAsideEarlier: metrics.jsonl of an earlier run is kept under another name before a new run
// writes.
//
// Any thread of rank 0's process; reads the end of the file alone.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace tidepool::trainer {

// Call before a run writes DIR/metrics.jsonl behind step `sealed` (0: it begins at step 1). The
// file is of another run when its last whole line names a later step, or no step at all. It is then
// kept whole as DIR/metrics.1.jsonl (or under the next free number); with `sealed` > 0 a copy of it
// stays in place, because its first lines may be this run's. A file with the line of step 0 alone
// is not kept: nothing was trained. Returns the new name; empty where nothing was kept. Errors:
// kFileWriteFailed.
Result<std::string> SetAsideEarlier(const std::string& directory, uint64_t sealed);

}  // namespace tidepool::trainer
