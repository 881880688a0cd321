#include "trainer/advice/timeline_svg.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/picture/chart.h"
#include "base/picture/palette.h"
#include "base/units.h"

namespace tidepool::trainer {
namespace {

// In pixels; the picture is shown at any width from 420 on, and is this wide by itself.
constexpr double kWidth = 1280;
constexpr double kTitleY = 26, kTitleLine = 20, kLegendLine = 20, kNameLine = 15;
constexpr double kLane = 22, kThinLane = 12, kGap = 5, kComplexGap = 12;
constexpr double kAxis = 44, kDigit = 7, kSwatch = 14;
// Positions across are shares of the width, in percent.
constexpr double kLeft = 2, kPlot = 96, kSecondColumn = 50;
// What fits a width of 420 pixels: letters of a title's line; a number of ticks.
constexpr size_t kTitleLetters = 40;
constexpr int64_t kTicksNarrow = 5;

// Styles in addition to the palette's.
constexpr const char* kStyle =
    R"(.paper{fill:var(--card);stroke:var(--line)}.lane{fill:var(--faint)}
.forward{fill:var(--coming)}.backward{fill:var(--complete)}.weights{fill:var(--nvme)}.tensors{fill:var(--held)}.sums{fill:var(--updating)}
svg .head{font-weight:bold;font-size:16px}svg .small{fill:var(--soft)}svg .number{font-size:11px;fill:#17212b;text-anchor:middle})";

std::string Pixels(double value) {
  return FormatFixed(value, 2);
}

std::string AcrossText(double value) {
  return FormatFixed(value, 3) + "%";
}

// `right`: pixels to the right of `x`.
std::string Text(const std::string& kind, double x, double y, const std::string& text,
                 double right = 0) {
  return "  <text class=\"" + kind + "\" x=\"" + AcrossText(x) + "\" dx=\"" + Pixels(right) +
         "\" y=\"" + Pixels(y) + "\">" + InPage(text) + "</text>\n";
}

// x and width in percent, y and height in pixels.
struct Box {
  double x = 0, y = 0, width = 0, height = 0;
};

std::string Rect(const char* kind, const Box& box) {
  return std::string("  <rect class=\"") + kind + "\" x=\"" + AcrossText(box.x) + "\" y=\"" +
         Pixels(box.y) + "\" width=\"" + AcrossText(box.width) + "\" height=\"" +
         Pixels(box.height) + "\"/>\n";
}

// A square of the legend.
std::string Square(const char* kind, double x, double y) {
  return std::string("  <rect class=\"") + kind + " swatch\" x=\"" + AcrossText(x) + "\" y=\"" +
         Pixels(y) + "\" width=\"" + Pixels(kSwatch) + "\" height=\"" + Pixels(kSwatch) + "\"/>\n";
}

std::string VerticalLine(const std::string& kind, double x, double from, double to) {
  return "  <line class=\"" + kind + "\" x1=\"" + AcrossText(x) + "\" y1=\"" + Pixels(from) +
         "\" x2=\"" + AcrossText(x) + "\" y2=\"" + Pixels(to) + "\"/>\n";
}

// The title in lines that fit the narrowest picture, broken at spaces.
std::vector<std::string> TitleLines(const std::string& title) {
  std::vector<std::string> lines(1);
  for (size_t at = 0; at < title.size();) {
    const size_t end = std::min(title.find(' ', at), title.size());
    const std::string word = title.substr(at, end - at);
    if (!lines.back().empty() && lines.back().size() + 1 + word.size() > kTitleLetters)
      lines.emplace_back();
    lines.back() += (lines.back().empty() ? "" : " ") + word;
    at = end + 1;
  }
  return lines;
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
        title_(title),
        title_lines_(TitleLines(title)),
        legend_y_(kTitleY + kTitleLine * static_cast<double>(title_lines_.size() - 1) + 14),
        lanes_y_(legend_y_ + 3 * kLegendLine + 14) {}

  std::string Take() {
    double y = lanes_y_;
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

    const double lanes_end = y - kComplexGap;
    return Head(lanes_end + kAxis) + Axis(lanes_end) + lanes_ + "</svg>\n";
  }

 private:
  double XOf(int64_t ns) const {
    return kLeft + kPlot * static_cast<double>(ns) / static_cast<double>(step_ns_);
  }

  // Rounds both ends, so that neighbours touch and never overlap.
  Box BoxOf(int64_t start_ns, int64_t end_ns, double y, double height) const {
    const auto rounded = [](double x) {
      return static_cast<double>(static_cast<int64_t>(x * 1000)) / 1000;
    };
    const double x = rounded(XOf(start_ns));
    return {x, y, rounded(XOf(end_ns)) - x, height};
  }

  std::string Head(double height) const {
    std::string text = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + Pixels(kWidth) +
                       "\" height=\"" + Pixels(height) +
                       "\" role=\"img\" aria-labelledby=\"title desc\">\n";
    text += "  <title id=\"title\">" + InPage(title_) + "</title>\n";
    text +=
        "  <desc id=\"desc\">One step of a pipeline over time: which stage each GPU computes, "
        "forward and backward, and what each root complex copies up and down.</desc>\n";

    text += "  <style>\n" + PictureStyle(PictureHome::kFile) + kStyle + "\n  </style>\n";
    text += Rect("paper", {0, 0, 100, height});
    for (size_t i = 0; i < title_lines_.size(); ++i)
      text += Text("head", kLeft, kTitleY + kTitleLine * static_cast<double>(i), title_lines_[i]);
    return text + Legend();
  }

  // Two columns, so that it fits every width.
  std::string Legend() const {
    constexpr std::array<std::array<const char*, 2>, 5> kLegend{
        {{"forward", "forward, with its stage"},
         {"backward", "backward"},
         {"weights", "weights"},
         {"tensors", "tensors between stages"},
         {"sums", "gradients"}}};

    std::string text;
    for (size_t i = 0; i < kLegend.size(); ++i) {
      const auto& [kind, words] = kLegend[i];
      const double x = i < 3 ? kLeft : kSecondColumn;
      const double y = legend_y_ + kLegendLine * static_cast<double>(i % 3);
      text += Square(kind, x, y);
      text += Text("small", x, y + 11, words, kSwatch + 6);
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
    const bool many = step_ns_ / tick > kTicksNarrow;
    for (int64_t at = 0; at <= step_ns_; at += tick) {
      // Every second label needs room.
      const std::string room = many && at / tick % 2 != 0 ? RoomClass(720) : "";
      const char* const anchor = at == 0 ? "" : step_ns_ - at < tick / 2 ? " end" : " middle";
      text += VerticalLine("grid", XOf(at), lanes_y_, y);
      text += Text(std::string("small") + room + anchor, XOf(at), y + 14,
                   FormatFixed(static_cast<double>(at) / unit, digits));
    }
    text += "  <line class=\"axis\" x1=\"" + AcrossText(kLeft) + "\" y1=\"" + Pixels(y) +
            "\" x2=\"" + AcrossText(kLeft + kPlot) + "\" y2=\"" + Pixels(y) + "\"/>\n";
    return text + Text("small end", kLeft + kPlot, y + 32,
                       seconds ? "seconds from the begin of the step"
                               : "milliseconds from the begin of the step");
  }

  void AddLane(const std::string& name, double y, double height) {
    lanes_ += Text("small", kLeft, y - 4, name);
    lanes_ += Rect("lane", {kLeft, y, kPlot, height});
  }

  void AddGpu(uint32_t gpu, double y) {
    AddLane(GpuName(gpu), y, kLane);
    for (const ComputeSpan& span : schedule_.computes) {
      if (span.gpu == gpu)
        lanes_ += Rect(span.backward ? "backward" : "forward",
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
    // The width of picture from which on the run has room for the number.
    const double wide = kDigit * static_cast<double>(number.size() + 1) * 100 / (behind - from);
    if (behind > from && FitsRoom(wide))
      lanes_ += Text("number" + RoomClass(wide), (from + behind) / 2, y + kLane / 2 + 4, number);
  }

  void AddLink(uint32_t complex, bool up, double y) {
    AddLane(LinkName(complex, up), y, kThinLane);
    for (const CopySpan& span : schedule_.spans) {
      const Copy& copy = schedule_.copies[span.copy];
      if (copy.up() == up && way_.task.topology.ComplexOf(copy.gpu) == complex)
        lanes_ += Rect(KindOf(copy), BoxOf(span.start_ns, span.end_ns, y, kThinLane));
    }
  }

  const PipelineWay& way_;
  const PipelineSchedule& schedule_;
  const int64_t step_ns_;
  const std::string title_;
  const std::vector<std::string> title_lines_;
  const double legend_y_, lanes_y_;
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
