#include "client/memctl/views/charts.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace tidepool::client {
namespace {

constexpr double kHeight = 160;

}  // namespace

std::string InPage(const std::string& text) {
  std::string out;
  for (const char c : text) {
    out += c == '<'   ? "&lt;"
           : c == '>' ? "&gt;"
           : c == '&' ? "&amp;"
           : c == '"' ? "&quot;"
                      : std::string(1, c);
  }
  return out;
}

std::string Number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f", value);
  return text.data();
}

std::string Chart(const ChartOf& chart) {
  const double length = std::max(chart.at.back() - chart.at.front(), 1e-9);
  const auto x = [&](double at) { return Number((at - chart.at.front()) / length * kChartWidth); };
  const auto y = [&](double value) {
    const double share = chart.most <= 0 ? 0 : std::clamp(value / chart.most, 0.0, 1.0);
    return Number(kHeight - 2 - share * (kHeight - 4));
  };

  std::string svg =
      "<svg width=\"" + Number(kChartWidth) + "\" height=\"" + Number(kHeight) + "\" role=\"img\">";
  std::string key = "<p class=\"key\">";
  for (const Curve& curve : chart.curves) {
    svg += "<polyline fill=\"none\" stroke-width=\"2\" stroke=\"" + std::string(curve.colour) +
           "\" points=\"";
    for (size_t i = 0; i < curve.values.size(); ++i)
      svg += x(chart.at[i]) + "," + y(curve.values[i]) + " ";
    svg += "\"/>";
    key +=
        "<span style=\"background:" + std::string(curve.colour) + "\"></span>" + InPage(curve.name);
  }

  for (const Mark& mark : chart.marks) {
    svg += "<circle r=\"4\" fill=\"#cf222e\" cx=\"" + x(mark.at) + "\" cy=\"" + y(mark.value) +
           "\"><title>" + InPage(mark.title) + "</title></circle>";
  }
  return svg + "</svg>" + key + "</p>\n<p class=\"span\">" + InPage(chart.span) + "</p>\n";
}

}  // namespace tidepool::client
