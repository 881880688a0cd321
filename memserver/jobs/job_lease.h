// The lease of a job without ranks: until when it is kept (decision 034).
//
// Pure functions over one job; the serve loop's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"
#include "memserver/jobs/job.h"
#include "memserver/jobs/tables.h"

namespace tidepool::memserver {

inline constexpr int64_t kKeptWithoutEnd = INT64_MAX;

// In time of the loop's clock. None: it has ranks, or is not to be kept at all. kKeptWithoutEnd:
// an operator has suspended it.
std::optional<int64_t> LeaseEndNs(const Job& job, const LoopOptions& options);
// The same in seconds since 1970, as people are told.
std::optional<int64_t> KeptUntilSeconds(const Job& job, const LoopOptions& options,
                                        const Clock& clock);
// `job` is about to be given up, against the wish of whoever trains it: runs that would go on with
// it are told `why`, where it has sealed steps.
void NoteLost(const Job& job, const std::string& why, LostJobs* lost);
// How long ranks of the server before this one are waited for, from its start on.
int64_t AwaitNs(const LoopOptions& options);

}  // namespace tidepool::memserver
