// RunReport: an interval of a run as one self-contained HTML page: memory by tier, loss, tokens per
// second, step times, sharing of CPUs, and residency over time.
//
// One thread. The data come from looks at the admin socket (nothing between looks is shown) and, if
// given, from the trainer's own metrics: hit rate compared with Belady's bound, late prefetches.
#pragma once

#include <string>
#include <vector>

#include "client/memctl/commands/recording.h"
#include "client/memctl/views/trainer_metrics.h"

namespace tidepool::client {

// `moments` in order, at least one. No scripts or external references: the page can be mailed.
std::string RenderReport(const std::vector<RunMoment>& moments,
                         const std::vector<StepMetrics>& steps = {});

// Takes looks, or reads the recording --from, and writes the page to the file `target`. Errors:
// those of MomentsFor, kFileWriteFailed.
Result<Shown> RunReport(const Invocation& invocation, const Style& style);

}  // namespace tidepool::client
