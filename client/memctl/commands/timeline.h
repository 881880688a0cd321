// Timeline: a stretch of a run as trace events, in the JSON form of Chrome's tracing
// (ui.perfetto.dev opens it).
//
// One thread; RenderTimeline is a pure function. A process of the trace is memserver (counters:
// pool, rCaches, NVMe, rates) or a job (lanes: its steps, the phases within them, and marks for
// fetches that came too early). Times are those of the looks: a phase that lay between two of them
// is not there, and borders are late by up to the distance of two.
#pragma once

#include <string>
#include <vector>

#include "client/memctl/commands/recording.h"

namespace tidepool::client {

// {"displayTimeUnit":"ms","traceEvents":[...]}; `moments` in order, one at least.
std::string RenderTimeline(const std::vector<RunMoment>& moments);

// Of the looks, those of one step ("12", or "last": the last that ended), from the first that saw
// it to the first that saw the next; in
// it only jobs that had this step. `remark` says of which the beginning or the end was not seen.
// Errors: kAdminNotFound (no job had it while they were taken).
struct StepLooks {
  std::vector<RunMoment> moments;
  std::string remark;
};
Result<StepLooks> LooksOfStep(std::vector<RunMoment> moments, const std::string& step);

// Looks, or reads the recording --from, and writes the file `target`. With --step those of one step
// alone; a live server is then looked at until it is over, for --for at most. Errors: those of
// MomentsFor and LooksOfStep, kFileWriteFailed.
Result<Shown> RunTimeline(const Invocation& invocation, const Style& style);

}  // namespace tidepool::client
