// The lease of a job without ranks: how long the job is kept (decision 034).
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

// When the lease ends, by the loop's clock. None if the job has ranks or is not to be kept;
// kKeptWithoutEnd if an operator has suspended it.
std::optional<int64_t> LeaseEndNs(const Job& job, const LoopOptions& options);
// The same in seconds since 1970, for people.
std::optional<int64_t> KeptUntilSeconds(const Job& job, const LoopOptions& options,
                                        const Clock& clock);
// Notes a job with sealed steps that is about to be given up although its user may want to
// continue: later runs that ask for it are told `why`.
void NoteLost(const Job& job, const std::string& why, LostJobs* lost);
// How long ranks of the former server are awaited, counted from this server's start.
int64_t AwaitNs(const LoopOptions& options);

}  // namespace tidepool::memserver
