// CheckSchedule: whether a schedule of the pipeline could happen, from its spans alone. It shares
// no code with what makes schedules: it looks at every span, every link and every moment of every
// GPU's memory.
#pragma once

#include <string>

#include "trainer/plan/pipeline/pipeline_schedule.h"

namespace tidepool::trainer {

// Empty, or the first thing that is wrong: "compute ...", "order ...", "copy ...", "link ...",
// "early ..." (something began before what it needs), "memory ..." or "end ...".
std::string CheckSchedule(const ScheduleTask& task, const PipelineSchedule& schedule);

// The most bytes that any GPU has at a moment.
uint64_t PeakBytes(const ScheduleTask& task, const PipelineSchedule& schedule);

}  // namespace tidepool::trainer
