// Charts: curves as SVG for pages without scripts.
//
// One thread; pure functions.
#pragma once

#include <string>
#include <vector>

namespace tidepool::client {

inline constexpr double kChartWidth = 900;

// One curve.
struct Curve {
  std::string name;
  const char* colour;
  std::vector<double> values;
};
// A point with a title.
struct Mark {
  double at = 0, value = 0;
  std::string title;
};
// What a chart shows.
struct ChartOf {
  // X values in ascending order, at least one; each curve has as many values.
  std::vector<double> at;
  std::vector<Curve> curves;
  double most = 1;          // the top of the scale; 0 is the bottom
  std::vector<Mark> marks;  // red dots
  std::string span;         // the axes, in words
};
// The chart with its legend below.
std::string Chart(const ChartOf& chart);

// Text with its special characters escaped.
std::string InPage(const std::string& text);
std::string Number(double value);  // with one digit after the point

}  // namespace tidepool::client
