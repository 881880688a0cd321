// PlannedLanes: the schedule that a pipeline's stages were chosen by, as lanes of a trace beside
// those of the real step.
//
// One thread; pure. Planned times are those of the machine that was planned for
// (`--topology`): what is compared is the order and the shares of the step, not seconds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tidepool::trainer {

class TraceEvents;

// A computation or a copy of the planned step. Nanoseconds from the begin of the step.
struct PlannedSpan {
  std::string lane;  // "GPU 0", "complex 1 up"
  std::string name;  // "forward 2 of stage 1", "weights of stage 3"
  int64_t start_ns = 0, end_ns = 0;
};

// A planned step, with what it is for. Without spans there is none.
struct PlannedStep {
  std::string title;
  std::vector<PlannedSpan> spans;
};

// The number of the planned machine's process in a trace: above memserver's.
inline constexpr uint64_t kPlanProcess = 2'000'000;

// Adds a process with a lane for each GPU and each link, which begins at `begin_ns` of the other
// events' clock. Adds nothing if there are no spans.
void AddPlannedLanes(const PlannedStep& step, int64_t begin_ns, TraceEvents* events);

}  // namespace tidepool::trainer
