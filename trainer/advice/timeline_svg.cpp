#include "trainer/advice/timeline_svg.h"

#include <algorithm>
#include <vector>

#include "base/clock.h"
#include "base/picture/chart.h"
#include "base/picture/palette.h"
#include "base/picture/svg.h"
#include "base/picture/svg_file.h"
#include "base/units.h"

namespace tidepool::trainer {
namespace {

// In pixels.
constexpr double kWidth = 1280, kNameLine = 15, kLane = 22, kThinLane = 12, kGap = 5;
constexpr double kComplexGap = 12, kDigit = 7, kAxis = 20, kAxisName = 16;
constexpr int kTicks = 8;

// Inks of what is computed and copied.
constexpr const char *kForward = "coming", *kBackward = "complete";

const char* InkOf(const Copy& copy) {
  if (copy.kind == CopyKind::kWeights) return "nvme";
  return copy.kind == CopyKind::kSums ? "updating" : "held";
}

const char* KindOf(const Copy& copy) {
  if (copy.kind == CopyKind::kWeights) return "weights";
  return copy.kind == CopyKind::kSums ? "sums" : "tensors";
}

std::string GpuName(uint32_t gpu) {
  return "GPU " + std::to_string(gpu);
}

std::string LinkName(uint32_t complex, bool up) {
  return "complex " + std::to_string(complex) + (up ? " up" : " down");
}

class Picture {
 public:
  Picture(const PipelineWay& way, const std::string& title)
      : way_(way),
        schedule_(way.schedule),
        time_(ExactScale(0, SecondsOf(std::max<int64_t>(way.schedule.step_ns, 1)),
                         AxisUnit::kSeconds, kTicks)),
        file_(title,
              "One step of a pipeline over time: which stage each GPU computes, forward and "
              "backward, and what each root complex copies up and down.") {}

  std::string Take() {
    file_.AddTitle();
    file_.Add("", kGap);
    file_.AddKey({{kForward, "forward, with its stage"},
                  {kBackward, "backward"},
                  {"nvme", "weights"},
                  {"held", "tensors between stages"},
                  {"updating", "gradients"}});
    const double top = file_.y() + kGap;
    double y = top;
    uint32_t gpu = 0;

    for (uint32_t complex = 0; complex < way_.task.topology.complexes.size(); ++complex) {
      for (uint32_t i = 0; i < way_.task.topology.complexes[complex].gpus; ++i, ++gpu) {
        AddGpu(gpu, y + kNameLine);
        y += kNameLine + kLane + kGap;
      }

      for (const bool up : {true, false}) {
        AddLink(complex, up, y + kNameLine);
        y += kNameLine + kThinLane + kGap;
      }
      y += kComplexGap;
    }

    const double floor = y - kComplexGap;
    file_.Add(
        AxisBelow(time_, top, floor, floor + 14) + lanes_ +
            SvgText("tick end", "100%", floor + 14 + kAxisName, "time from the begin of the step"),
        floor + kAxis + kAxisName - file_.y());
    return file_.Take(kWidth);
  }

 private:
  static double SecondsOf(int64_t ns) { return static_cast<double>(ns) / kNsPerSecond; }
  double ShareOf(int64_t ns) const { return time_.ShareOf(SecondsOf(ns)); }

  // Rounds both ends, so that neighbours touch and never overlap.
  SvgBox BoxOf(int64_t start_ns, int64_t end_ns, double y, double height) const {
    const auto rounded = [](double share) {
      return static_cast<double>(static_cast<int64_t>(share * 10'000)) / 10'000;
    };
    const double from = rounded(ShareOf(start_ns));
    return {Across(from), y, Across(rounded(ShareOf(end_ns)) - from), height};
  }

  void AddLane(const std::string& name, double y, double height) {
    lanes_ +=
        "\n" + SvgText("tick", "0", y - 4, name) + SvgRect("ink-faint", {.y = y, .height = height});
  }

  void AddGpu(uint32_t gpu, double y) {
    AddLane(GpuName(gpu), y, kLane);
    for (const ComputeSpan& span : schedule_.computes) {
      if (span.gpu == gpu)
        lanes_ += SvgRect(ClassOf(span.backward ? kBackward : kForward),
                          BoxOf(span.start_ns, span.end_ns, y, kLane));
    }

    for (uint32_t stage = 0; stage < way_.task.stages.size(); ++stage) {
      if (way_.task.order[stage % way_.task.order.size()] != gpu) continue;
      for (const bool backward : {false, true}) AddNumber(stage, backward, y);
    }
  }

  // Writes the stage's number into its longest run of micro-batches, if it is wide enough.
  void AddNumber(uint32_t stage, bool backward, double y) {
    int64_t start = 0, end = -1, longest_start = 0, longest_end = 0;
    for (const ComputeSpan& span : schedule_.computes) {
      if (span.stage != stage || span.backward != backward) continue;
      if (span.start_ns != end) start = span.start_ns;
      end = span.end_ns;
      if (end - start <= longest_end - longest_start) continue;
      longest_start = start;
      longest_end = end;
    }

    const std::string number = std::to_string(stage + 1);
    const double from = ShareOf(longest_start), behind = ShareOf(longest_end);
    // The width of picture from which on the run has room for the number.
    const double wide = kDigit * static_cast<double>(number.size() + 1) / (behind - from);
    if (behind > from && FitsRoom(wide))
      lanes_ += SvgText("letter" + RoomClass(wide), Across((from + behind) / 2), y + kLane / 2 + 4,
                        number);
  }

  void AddLink(uint32_t complex, bool up, double y) {
    AddLane(LinkName(complex, up), y, kThinLane);
    for (const CopySpan& span : schedule_.spans) {
      const Copy& copy = schedule_.copies[span.copy];
      if (copy.up() == up && way_.task.topology.ComplexOf(copy.gpu) == complex)
        lanes_ += SvgRect(ClassOf(InkOf(copy)), BoxOf(span.start_ns, span.end_ns, y, kThinLane));
    }
  }

  static std::string ClassOf(const char* ink) { return std::string("ink-") + ink; }

  const PipelineWay& way_;
  const PipelineSchedule& schedule_;
  const Scale time_;
  SvgFile file_;
  std::string lanes_;
};

}  // namespace

std::vector<PlannedSpan> PlannedSpans(const PipelineWay& way) {
  const PipelineSchedule& schedule = way.schedule;
  const auto of_stage = [](uint32_t stage) { return " of stage " + std::to_string(stage); };
  std::vector<PlannedSpan> spans;
  for (const ComputeSpan& each : schedule.computes) {
    spans.push_back({.lane = GpuName(each.gpu),
                     .name = (each.backward ? "backward " : "forward ") +
                             std::to_string(each.micro_batch) + of_stage(each.stage),
                     .start_ns = each.start_ns,
                     .end_ns = each.end_ns});
  }

  for (const CopySpan& each : schedule.spans) {
    const Copy& copy = schedule.copies[each.copy];
    spans.push_back({.lane = LinkName(way.task.topology.ComplexOf(copy.gpu), copy.up()),
                     .name = KindOf(copy) + of_stage(copy.stage),
                     .start_ns = each.start_ns,
                     .end_ns = each.end_ns});
  }

  std::stable_sort(spans.begin(), spans.end(),
                   [](const PlannedSpan& a, const PlannedSpan& b) { return a.lane < b.lane; });
  return spans;
}

std::string TimelineSvg(const PipelineWay& way, const std::string& title) {
  return Picture(way, title).Take();
}

}  // namespace tidepool::trainer
