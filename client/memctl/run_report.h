// RunReport: a stretch of a run as one HTML page that needs nothing else: memory by tier, steps and residency over time.
//
// One thread. Everything on the page comes from looks at the admin socket; what happened between two looks is not on it.
#pragma once

#include <string>
#include <vector>

#include "client/memctl/commands.h"
#include "client/memctl/views.h"

namespace tidepool::client {

// One look.
struct RunMoment {
  StatusView status;
  std::vector<JobView> jobs;
  ResidencyView residency;
};

// `moments` in order, one at least. No scripts, no references: the page can be mailed.
std::string RenderReport(const std::vector<RunMoment>& moments);

// Looks every --watch (250 ms) for --for (10 s), then writes the page to the file `target`. Errors: those of a look, kFileWriteFailed.
Result<Shown> RunReport(const Invocation& invocation, const Style& style);

}  // namespace tidepool::client
