// Timeline: a stretch of a run as trace events, in the JSON form of Chrome's tracing (ui.perfetto.dev opens it).
//
// One thread; RenderTimeline is a pure function. A process of the trace is memserver (counters: pool, rCaches, NVMe, rates) or a job
// (lanes: its steps, the phases within them, and marks for fetches that came too early). Times are those of the looks: a phase that lay
// between two of them is not there, and borders are late by up to the distance of two.
#pragma once

#include <string>
#include <vector>

#include "client/memctl/recording.h"

namespace tidepool::client {

// {"displayTimeUnit":"ms","traceEvents":[...]}; `moments` in order, one at least.
std::string RenderTimeline(const std::vector<RunMoment>& moments);

// Looks, or reads the recording --from, and writes the file `target`. Errors: those of MomentsFor, kFileWriteFailed.
Result<Shown> RunTimeline(const Invocation& invocation, const Style& style);

}  // namespace tidepool::client
