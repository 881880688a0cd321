// Timeline: an interval of a run as trace events, in Chrome's JSON trace format (ui.perfetto.dev
// opens it).
//
// One thread; RenderTimeline is a pure function. A process of the trace is memserver (counters:
// pool, rCaches, NVMe, rates) or a job (lanes: its steps, their phases, and marks for fetches that
// came too early). Times are those of the looks: a phase between two looks is missing, and
// boundaries are late by up to the interval between looks.
#pragma once

#include <string>
#include <vector>

#include "client/memctl/commands/recording.h"

namespace tidepool::client {

// {"displayTimeUnit":"ms","traceEvents":[...]}; `moments` in order, at least one.
std::string RenderTimeline(const std::vector<RunMoment>& moments);

// LooksOfStep selects the looks of one step ("12", or "last": the last that ended), from the first
// that saw it to the first that saw the next, with the jobs that had this step. `remark` names the
// jobs whose step's start or end was not seen. Errors: kAdminNotFound (no job had the step during
// the looks).
struct StepLooks {
  std::vector<RunMoment> moments;
  std::string remark;
};
Result<StepLooks> LooksOfStep(std::vector<RunMoment> moments, const std::string& step);

// Takes looks, or reads the recording --from, and writes the file `target`. With --step it writes
// the looks of that step only, and samples a live server until the step is over, for at most --for.
// Errors: those of MomentsFor and LooksOfStep, kFileWriteFailed.
Result<Shown> RunTimeline(const Invocation& invocation, const Style& style);

}  // namespace tidepool::client
