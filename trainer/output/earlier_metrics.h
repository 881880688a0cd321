// SetAsideEarlier: keeps the metrics.jsonl of an earlier run under another name before a new run
// writes.
//
// Any thread of rank 0's process; reads only the end of the file.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace tidepool::trainer {

// Call before a run writes DIR/metrics.jsonl after step `sealed` (0: it begins at step 1). The file
// is from another run if its last complete line names a later step, or no step. It is then kept in
// full as DIR/metrics.1.jsonl (or the next free number); with `sealed` > 0 a copy stays in place,
// because its first lines may be this run's. A file with only the line of step 0 is not kept:
// nothing was trained. Returns the new name; empty if nothing was kept. Errors: kFileWriteFailed.
Result<std::string> SetAsideEarlier(const std::string& directory, uint64_t sealed);

}  // namespace tidepool::trainer
