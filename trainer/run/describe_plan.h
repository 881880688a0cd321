// Formats a plan for people and as JSON: the text of `trainer estimate`, of --dry-run and of the
// long banner.
//
// Any thread; pure functions.
#pragma once

#include <string>

#include "trainer/advice/limits/run_limits.h"
#include "trainer/run/run_plan.h"

namespace tidepool::trainer {

// Several lines, with the reason of every choice.
std::string DescribePlan(const RunPlan& plan);
// One line: which states are on GPUs; empty if there was no choice.
std::string DescribeGpuStates(const RunPlan& plan);
// One JSON object. `gpu`: null if the run computes on the host. `limits`: null to leave them out.
std::string PlanJson(const RunPlan& plan, const GpuEstimate* gpu = nullptr,
                     const RunLimits* limits = nullptr);

}  // namespace tidepool::trainer
