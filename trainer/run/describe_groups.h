// DescribeGroups: shows the data groups of a model with experts: which parameters lie with which
// ranks, and their bytes.
//
// Any thread; pure functions.
#pragma once

#include <string>

#include "base/text/json_writer.h"
#include "trainer/run/run_plan.h"

namespace tidepool::trainer {

// One line per data group; "" for one rank, or a model without experts.
std::string DescribeGroups(const RunPlan& plan);
// The same as the field "groups"; nothing where DescribeGroups is empty.
void WriteGroups(const RunPlan& plan, JsonWriter* json);

}  // namespace tidepool::trainer
