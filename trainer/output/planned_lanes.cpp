#include "trainer/output/planned_lanes.h"

#include <algorithm>
#include <map>
#include <utility>

#include "trainer/output/trace_events.h"

namespace tidepool::trainer {

void AddPlannedLanes(const PlannedStep& step, int64_t begin_ns, TraceEvents* events) {
  if (step.spans.empty()) return;
  std::map<std::string, std::vector<TraceSlice>> lanes;
  std::vector<std::string> names;  // in the order in which they come first
  for (const PlannedSpan& span : step.spans) {
    std::vector<TraceSlice>& lane = lanes[span.lane];
    if (lane.empty()) names.push_back(span.lane);
    lane.push_back(
        {.name = span.name, .from_ns = begin_ns + span.start_ns, .to_ns = begin_ns + span.end_ns});
  }

  events->BeginProcess(kPlanProcess, step.title);
  for (size_t i = 0; i < names.size(); ++i) {
    std::vector<TraceSlice>& lane = lanes[names[i]];
    std::stable_sort(lane.begin(), lane.end(), [](const TraceSlice& a, const TraceSlice& b) {
      return a.from_ns < b.from_ns;
    });
    for (TraceSlice& slice : lane) slice.lane = i + 1;
    events->NameLane(i + 1, names[i]);
    events->AddRows(names[i], &lane);
  }
}

}  // namespace tidepool::trainer
