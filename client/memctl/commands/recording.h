// Recording: a sequence of looks (samples of the admin socket), kept in a file or read from one.
//
// One thread. The file is text: a header line, then three lines per look: the bodies of /v1/status,
// /v1/jobs and /v1/residency. It has nothing of what happens between looks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "client/memctl/flags/invocation.h"
#include "client/memctl/views/render.h"
#include "client/memctl/views/shown.h"
#include "client/admin/views.h"

namespace tidepool::client {

// One look.
struct RunMoment {
  StatusView status;
  std::vector<JobView> jobs;
  ResidencyView residency;
};
double SecondsOf(const RunMoment& moment);  // since memserver started
// The job of this number; null if it is not in the look.
const ResidencyJob* JobAt(const RunMoment& moment, uint64_t id);

// Takes a look every --watch (250 ms, `timeline` 50 ms) for --for (10 s), or reads the looks of the
// file --from; at least one. Stops early once `enough` is true. Errors: those of a look,
// kFileUnreadable, kHandshakeBad (not a recording, or one of another release).
Result<std::vector<RunMoment>> MomentsFor(
    const Invocation& invocation,
    const std::function<bool(const RunMoment&)>& enough = [](const RunMoment&) { return false; });

// Records looks to the file `target`. Errors: those of a look, kFileWriteFailed.
Result<Shown> RunRecord(const Invocation& invocation, const Style& style);

// The residency of the last look at or before --at seconds after the first look of a recording.
// Errors: those of MomentsFor.
Result<ResidencyView> ResidencyAt(const Invocation& invocation);

// Replaces the file `path`. Errors: kFileWriteFailed.
Status WriteWhole(const std::string& path, const std::string& text);

}  // namespace tidepool::client
