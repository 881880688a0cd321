// What a plan says, for people and as JSON: the text of `trainer estimate`, of --dry-run and of the
// long banner.
//
// Any thread; pure functions.
#pragma once

#include <string>

#include "trainer/run/run_plan.h"

namespace tidepool::trainer {

// Several lines for people, with the reason of every choice.
std::string DescribePlan(const RunPlan& plan);
// One line for people: which states are on GPUs; empty where there was nothing to decide.
std::string DescribeGpuStates(const RunPlan& plan);
// One JSON object. `gpu`: null where the run is on the host.
std::string PlanJson(const RunPlan& plan, const GpuEstimate* gpu = nullptr);

}  // namespace tidepool::trainer
