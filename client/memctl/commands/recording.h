// Recording: looks at the admin socket, in the order in which they came, kept in a file and read
// again.
//
// One thread. A file is text: a head line, then three lines for each look, the bodies of
// /v1/status, /v1/jobs and /v1/residency. What happened between two looks is not in it.
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
// The job of this number; null where the moment has none.
const ResidencyJob* JobAt(const RunMoment& moment, uint64_t id);

// Takes a look every --watch (250 ms, `timeline` 50 ms) for --for (10 s), or reads the looks of the
// file --from; at least one. Takes no more when one is `enough`. Errors: those of a look,
// kFileUnreadable, kHandshakeBad (no recording, or one of another release).
Result<std::vector<RunMoment>> MomentsFor(
    const Invocation& invocation,
    const std::function<bool(const RunMoment&)>& enough = [](const RunMoment&) { return false; });

// Writes the looks to the file `target`. Errors: those of a look, kFileWriteFailed.
Result<Shown> RunRecord(const Invocation& invocation, const Style& style);

// The residency in a recording at --at seconds after its first look: the last look until then.
// Errors: those of MomentsFor.
Result<ResidencyView> ResidencyAt(const Invocation& invocation);

// Replaces the file `path`. Errors: kFileWriteFailed.
Status WriteWhole(const std::string& path, const std::string& text);

}  // namespace tidepool::client
