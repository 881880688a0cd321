#include "trainer/advice/timeline_svg.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/units.h"
#include "trainer/advice/picture/svg_parts.h"

namespace tidepool::trainer {
namespace {

// In pixels.
constexpr double kWidth = kPictureSizes.width, kLeft = kPictureSizes.left;
constexpr double kRight = kPictureSizes.right, kPlot = kPictureSizes.plot();
constexpr double kLegendY = 48, kLanesY = 84;
constexpr double kLane = 22, kThinLane = 12, kGap = 6, kComplexGap = 16;
constexpr double kAxis = kPictureSizes.axis, kDigit = kPictureSizes.digit;

// Styles in addition to the palette's.
constexpr const char* kStyle =
    R"(.paper{fill:var(--card);stroke:var(--line)}.lane{fill:var(--faint)}
.forward{fill:var(--coming)}.backward{fill:var(--complete)}.weights{fill:var(--nvme)}.tensors{fill:var(--held)}.sums{fill:var(--updating)}
svg .head{font-weight:bold;font-size:16px}svg .small{fill:var(--soft)}svg .number{font-size:11px;fill:#17212b;text-anchor:middle})";

const char* KindOf(const Copy& copy) {
  if (copy.kind == CopyKind::kWeights) return "weights";
  return copy.kind == CopyKind::kSums ? "sums" : "tensors";
}

// 1, 2 or 5 times a power of ten, chosen for at most ten ticks.
int64_t TickNs(int64_t step_ns) {
  for (int64_t power = 1;; power *= 10) {
    for (const int64_t factor : {1, 2, 5}) {
      if (step_ns / (power * factor) <= 10) return power * factor;
    }
  }
}

class Picture {
 public:
  Picture(const PipelineWay& way, const std::string& title)
      : way_(way),
        schedule_(way.schedule),
        step_ns_(std::max<int64_t>(way.schedule.step_ns, 1)),
        title_(title) {}

  std::string Take() {
    double y = kLanesY;
    uint32_t gpu = 0;

    for (uint32_t complex = 0; complex < way_.task.topology.complexes.size(); ++complex) {
      for (uint32_t i = 0; i < way_.task.topology.complexes[complex].gpus; ++i, ++gpu) {
        AddGpu(gpu, y);
        y += kLane + kGap;
      }

      for (const bool up : {true, false}) {
        AddLink(complex, up, y);
        y += kThinLane + kGap;
      }
      y += kComplexGap;
    }

    const double lanes_end = y - kComplexGap;
    return Head(lanes_end + kAxis) + Axis(lanes_end) + lanes_ + "</svg>\n";
  }

 private:
  double XOf(int64_t ns) const {
    return kLeft + kPlot * static_cast<double>(ns) / static_cast<double>(step_ns_);
  }

  // Rounds both ends, so that neighbours touch and never overlap.
  SvgBox BoxOf(int64_t start_ns, int64_t end_ns, double y, double height) const {
    const auto rounded = [](double x) {
      return static_cast<double>(static_cast<int64_t>(x * 100)) / 100;
    };
    const double x = rounded(XOf(start_ns));
    return {x, y, rounded(XOf(end_ns)) - x, height};
  }

  std::string Head(double height) const {
    std::string text = SvgHead(
        title_,
        "One step of a pipeline over time: which stage each GPU computes, forward and backward, "
        "and what each root complex copies up and down.",
        kStyle, height);

    constexpr std::array<std::array<const char*, 2>, 5> kLegend{
        {{"forward", "forward, number of the stage"},
         {"backward", "backward"},
         {"weights", "weights"},
         {"tensors", "tensors between stages"},
         {"sums", "gradients"}}};

    double x = kLeft;
    for (const auto& [kind, words] : kLegend) {
      text += SvgRect(kind, {x, kLegendY, 14, 14});
      text += SvgText("small", x + 20, kLegendY + 11, words);
      x += 44 + kDigit * static_cast<double>(std::string(words).size());
    }
    return text;
  }

  std::string Axis(double y) const {
    const int64_t tick = TickNs(step_ns_);
    const bool seconds = tick >= 100'000'000;
    const double unit = seconds ? 1e9 : 1e6;
    const int digits = static_cast<double>(tick) / unit >= 1     ? 0
                       : static_cast<double>(tick) / unit >= 0.1 ? 1
                                                                 : 3;

    std::string text;
    for (int64_t at = 0; at <= step_ns_; at += tick) {
      text += SvgVerticalLine("grid", XOf(at), kLanesY - 6, y);
      text += SvgText("small middle", XOf(at), y + 14,
                      FormatFixed(static_cast<double>(at) / unit, digits));
    }
    text += SvgHorizontalLine("axis", y, kLeft, kWidth - kRight);
    return text + SvgText("small end", kWidth - kRight, y + 32,
                          seconds ? "seconds from the begin of the step"
                                  : "milliseconds from the begin of the step");
  }

  void AddLane(const std::string& name, double y, double height) {
    lanes_ += SvgText("small end", kLeft - 8, y + height / 2 + 4, name);
    lanes_ += SvgRect("lane", {kLeft, y, kPlot, height});
  }

  void AddGpu(uint32_t gpu, double y) {
    AddLane("GPU " + std::to_string(gpu), y, kLane);
    for (const ComputeSpan& span : schedule_.computes) {
      if (span.gpu == gpu)
        lanes_ += SvgRect(span.backward ? "backward" : "forward",
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
    const double from = XOf(longest_start), behind = XOf(longest_end);
    if (behind - from > kDigit * static_cast<double>(number.size() + 1))
      lanes_ += SvgText("number", (from + behind) / 2, y + kLane / 2 + 4, number);
  }

  void AddLink(uint32_t complex, bool up, double y) {
    AddLane("complex " + std::to_string(complex) + (up ? " up" : " down"), y, kThinLane);
    for (const CopySpan& span : schedule_.spans) {
      const Copy& copy = schedule_.copies[span.copy];
      if (copy.up() == up && way_.task.topology.ComplexOf(copy.gpu) == complex)
        lanes_ += SvgRect(KindOf(copy), BoxOf(span.start_ns, span.end_ns, y, kThinLane));
    }
  }

  const PipelineWay& way_;
  const PipelineSchedule& schedule_;
  const int64_t step_ns_;
  const std::string title_;
  std::string lanes_;
};

}  // namespace

std::string TimelineSvg(const PipelineWay& way, const std::string& title) {
  return Picture(way, title).Take();
}

}  // namespace tidepool::trainer
