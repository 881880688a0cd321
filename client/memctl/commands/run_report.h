// RunReport: a stretch of a run as one HTML page that needs nothing else: memory by tier, steps and
// residency over time.
//
// One thread. What is on the page comes from looks at the admin socket (what happened between two
// is not on it), and from the trainer's own metrics where they were given: hit rate against the
// bound of Belady, late prefetches.
#pragma once

#include <string>
#include <vector>

#include "client/memctl/commands/recording.h"
#include "client/memctl/views/trainer_metrics.h"

namespace tidepool::client {

// `moments` in order, one at least. No scripts, no references: the page can be mailed.
std::string RenderReport(const std::vector<RunMoment>& moments,
                         const std::vector<StepMetrics>& steps = {});

// The chunks of every job from left to right, a row for each place: as a picture, and as a page
// with nothing but that.
std::string RenderSvg(const ResidencyView& residency);
std::string RenderPicturePage(const ResidencyView& residency);

// Looks, or reads the recording --from, and writes the page to the file `target`. Errors: those of
// MomentsFor, kFileWriteFailed.
Result<Shown> RunReport(const Invocation& invocation, const Style& style);

}  // namespace tidepool::client
