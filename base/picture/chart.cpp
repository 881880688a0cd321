#include "base/picture/chart.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/picture/palette.h"
#include "base/picture/svg.h"
#include "base/units.h"

namespace tidepool {
namespace {

constexpr double kTop = 6, kLaneHeight = 10, kLaneApart = 16, kAxisHeight = 20;
constexpr size_t kTicksNarrow = 6;   // words that fit below a chart of 420 pixels
constexpr size_t kPointsMax = 2000;  // per curve; a longer one shows the extremes of each stretch

// The indices of the points to draw: all points of a short curve.
std::vector<size_t> PointsOf(const std::vector<double>& values) {
  std::vector<size_t> points;
  const size_t stretch = DivideUp(std::max<size_t>(values.size(), 1), kPointsMax / 2);
  for (size_t begin = 0; begin < values.size(); begin += stretch) {
    const auto first = values.begin() + static_cast<ptrdiff_t>(begin);
    const auto end =
        values.begin() + static_cast<ptrdiff_t>(std::min(begin + stretch, values.size()));
    const auto [low, high] = std::minmax_element(first, end);

    const auto [one, other] = std::minmax({low - values.begin(), high - values.begin()});
    points.push_back(static_cast<size_t>(one));
    if (one != other) points.push_back(static_cast<size_t>(other));
  }
  return points;
}

// Polylines in a box of 1000 by 1000, which is stretched over the plot. A NaN leaves a gap.
std::string Drawn(const ChartOf& chart, const Curve& curve, size_t number) {
  const std::string head = "<polyline class=\"line-" + std::string(curve.ink) + " dash-" +
                           std::to_string(number) +
                           "\" vector-effect=\"non-scaling-stroke\" points=\"";
  std::string svg, points;
  const auto end = [&] {
    if (!points.empty()) svg += head + points + "\"/>";
    points.clear();
  };

  for (const size_t i : PointsOf(curve.values)) {
    if (std::isnan(curve.values[i])) {
      end();
      continue;
    }
    points += (points.empty() ? "" : " ") + Place(1000 * chart.x.ShareOf(chart.at[i])) + "," +
              Place(1000 * (1 - chart.y.ShareOf(curve.values[i])));
  }
  end();
  return svg;
}

std::string Axes(const ChartOf& chart, double floor, double bottom) {
  std::string svg;
  for (const Tick& tick : chart.y.ticks) {
    const double y = kTop + chart.height * (1 - chart.y.ShareOf(tick.value));
    svg += SvgHorizontal("grid", y) + SvgText("tick end", "-8", y + 4, tick.label);
  }

  return svg + AxisBelow(chart.x, kTop, floor, bottom);
}

std::string Strip(const ChartOf& chart, const Lane& lane, double y) {
  std::string svg = SvgRect("ink-faint", {.y = y, .height = kLaneHeight}) +
                    SvgText("tick end", "-8", y + 9, lane.name);
  for (const Stretch& stretch : lane.stretches) {
    const double from = chart.x.ShareOf(stretch.from), to = chart.x.ShareOf(stretch.to);
    svg += SvgRect("ink-" + std::string(stretch.ink),
                   {Across(from), y, Across(to - from), kLaneHeight});
  }
  return svg;
}

std::string Dots(const ChartOf& chart) {
  std::string svg;
  for (const Mark& mark : chart.marks) {
    svg += "<circle class=\"ink-due\" r=\"3.5\" cx=\"" + Across(chart.x.ShareOf(mark.at)) +
           "\" cy=\"" + Place(kTop + chart.height * (1 - chart.y.ShareOf(mark.value))) +
           "\"><title>" + InPage(mark.title) + "</title></circle>";
  }
  return svg;
}

std::string Stretched(double y, double height, const std::string& inside) {
  return "<svg y=\"" + Place(y) + "\" width=\"100%\" height=\"" + Place(height) +
         "\" viewBox=\"0 0 1000 1000\" preserveAspectRatio=\"none\">" + inside + "</svg>";
}

}  // namespace

std::string AxisBelow(const Scale& scale, double top, double floor, double words) {
  std::string svg;
  for (size_t i = 0; i < scale.ticks.size(); ++i) {
    const double share = scale.ShareOf(scale.ticks[i].value);
    const char* const anchor = share > 0.95 ? " end" : share < 0.05 ? "" : " middle";
    // Where there are many, every second word needs room.
    const std::string room = scale.ticks.size() > kTicksNarrow && i % 2 != 0 ? RoomClass(720) : "";
    svg += SvgVertical("grid", Across(share), top, floor) +
           SvgText("tick" + room + anchor, Across(share), words, scale.ticks[i].label);
  }
  return svg + SvgHorizontal("axis", floor);
}

std::string Swatch(const KeyEntry& entry, const std::string& place) {
  std::string svg = "<svg class=\"swatch\" " + place +
                    " width=\"16\" height=\"16\" aria-hidden=\"true\"><rect class=\"ink-" +
                    std::string(entry.ink) +
                    "\" width=\"16\" height=\"16\" rx=\"3\"/><rect class=\"frame\" x=\"0.5\" "
                    "y=\"0.5\" width=\"15\" height=\"15\" rx=\"3\"/>";
  if (entry.letter != ' ') {
    svg += "<text class=\"letter" + std::string(entry.ink == "nvme" ? " pale" : "") +
           "\" x=\"8\" y=\"12\">" + InPage(std::string(1, entry.letter)) + "</text>";
  }
  return svg + "</svg>";
}

std::string Key(const std::vector<KeyEntry>& key) {
  if (key.empty()) return "";
  std::string html = "<ul class=\"legend\">";
  for (const KeyEntry& entry : key) html += "<li>" + Swatch(entry) + InPage(entry.text) + "</li>";
  return html + "</ul>";
}

std::string Chart(const ChartOf& chart) {
  const double floor = kTop + chart.height,
               lanes_end = floor + (chart.lanes.empty() ? 0 : 4) +
                           kLaneApart * static_cast<double>(chart.lanes.size()),
               bottom = lanes_end + kAxisHeight - 6;

  std::string svg = "<svg class=\"chart\" height=\"" + Place(bottom + 4) +
                    "\" role=\"img\" aria-label=\"" + InPage(chart.title) + "\">" +
                    Axes(chart, floor, bottom);
  std::string curves;
  std::vector<KeyEntry> key;
  for (size_t i = 0; i < chart.curves.size(); ++i) {
    curves += Drawn(chart, chart.curves[i], i);
    key.push_back({chart.curves[i].ink, chart.curves[i].name});
  }

  svg += Stretched(kTop, chart.height, curves) + Dots(chart);
  for (size_t i = 0; i < chart.lanes.size(); ++i)
    svg += Strip(chart, chart.lanes[i], floor + kLaneApart * static_cast<double>(i) + 9);
  key.insert(key.end(), chart.key.begin(), chart.key.end());
  const std::string x_name =
      chart.x_name.empty() ? "" : " <span class=\"soft\">over " + InPage(chart.x_name) + "</span>";
  return "<figure class=\"picture\"><figcaption>" + InPage(chart.title) + x_name + "</figcaption>" +
         svg + "</svg>" + Key(key) + "</figure>\n";
}

std::string SmallChart(const std::string& name, const std::vector<double>& values, size_t room,
                       const std::string& most, const std::string& span) {
  constexpr double kHeight = 30, kAbove = 14;
  const double top =
      std::max(values.empty() ? 0.0 : *std::max_element(values.begin(), values.end()), 1e-9);
  ChartOf chart{.x = {0, static_cast<double>(room - 1), {}}, .y = {0, top, {}}};
  for (size_t i = 0; i < values.size(); ++i)
    chart.at.push_back(static_cast<double>(room - values.size() + i));

  return "<div class=\"picture\"><svg width=\"100%\" height=\"" + Place(kAbove + kHeight + 14) +
         "\" role=\"img\" aria-label=\"" + InPage(name) + "\">" +
         SvgText("tick", "0", 10, "up to " + most) + SvgHorizontal("grid", kAbove) +
         Stretched(kAbove, kHeight, Drawn(chart, {"", "accent", values}, 0)) +
         SvgHorizontal("axis", kAbove + kHeight) +
         SvgText("tick", "0", kAbove + kHeight + 12, span) +
         SvgText("tick end", "100%", kAbove + kHeight + 12, "now") + "</svg></div>";
}

}  // namespace tidepool
