// Timeline: a stretch of a run as trace events, in the JSON form of Chrome's tracing
// (ui.perfetto.dev opens it).
//
// One thread; RenderTimeline is a pure function. A process of the trace is memserver (counters:
// pool, rCaches, NVMe, rates) or a job (lanes: its steps, the phases within them, and marks for
// fetches that came too early). Times are those of the looks: a phase that lay between two looks is
// missing, and borders are late by up to the distance between two looks.
#pragma once

#include <string>
#include <vector>

#include "client/memctl/commands/recording.h"

namespace tidepool::client {

// {"displayTimeUnit":"ms","traceEvents":[...]}; `moments` in order, one at least.
std::string RenderTimeline(const std::vector<RunMoment>& moments);

// LooksOfStep selects the looks of one step ("12", or "last": the last that ended), from the first
// that saw it to the first that saw the next, with only those jobs that had this step. `remark`
// names the jobs whose beginning or end was not seen. Errors: kAdminNotFound (no job had the step
// during the looks).
struct StepLooks {
  std::vector<RunMoment> moments;
  std::string remark;
};
Result<StepLooks> LooksOfStep(std::vector<RunMoment> moments, const std::string& step);

// Looks, or reads the recording --from, and writes the file `target`. With --step it writes the
// looks of that step only, and looks at a live server until the step is over, for --for at most.
// Errors: those of MomentsFor and LooksOfStep, kFileWriteFailed.
Result<Shown> RunTimeline(const Invocation& invocation, const Style& style);

}  // namespace tidepool::client
