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

// When the lease ends, by the loop's clock. Nothing where the job has ranks or is not to be kept;
// kKeptWithoutEnd where an operator has suspended it.
std::optional<int64_t> LeaseEndNs(const Job& job, const LoopOptions& options);
// The same in seconds since 1970, as people are told.
std::optional<int64_t> KeptUntilSeconds(const Job& job, const LoopOptions& options,
                                        const Clock& clock);
// Notes a job with sealed steps that is about to be given up although its user may want to go on:
// later runs that ask for it are told `why`.
void NoteLost(const Job& job, const std::string& why, LostJobs* lost);
// How long ranks of the server before this one are awaited, counted from this server's start.
int64_t AwaitNs(const LoopOptions& options);

}  // namespace tidepool::memserver
