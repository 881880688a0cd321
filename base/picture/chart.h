// Chart: curves over time or steps, with axes, units and a key, as HTML and SVG without scripts.
// The same text fits any width, because positions are shares of the width.
//
// Any thread; pure functions. The page must contain PictureStyle.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/picture/scale.h"
#include "base/picture/svg.h"

namespace tidepool {

// One curve. Unknown values are NaN.
struct Curve {
  std::string name;
  std::string_view ink;
  std::vector<double> values{};
};
// A point with a title.
struct Mark {
  double at = 0, value = 0;
  std::string title;
};
// An interval of a lane, in units of the x axis, filled with one ink.
struct Stretch {
  double from = 0, to = 0;
  std::string_view ink;
};
// A strip below the curves that shows a state over time.
struct Lane {
  std::string name;  // a short label beside the strip
  std::vector<Stretch> stretches{};
};
// An ink and its meaning.
struct KeyEntry {
  std::string_view ink;
  std::string text;
  char letter = ' ';  // in the swatch; ' ': none
};

// What a chart shows.
struct ChartOf {
  std::string title{};
  // The x values in ascending order; each curve has as many values.
  std::vector<double> at{};
  std::vector<Curve> curves{};
  Scale x{}, y{};
  std::string x_name{};       // "the time since the first look"
  std::vector<Mark> marks{};  // dots in the ink "due"
  std::vector<Lane> lanes{};
  std::vector<KeyEntry> key{};  // further entries, after those of the curves
  double height = 120;          // of the plot, in pixels
};

// A <figure> with title, picture and key.
std::string Chart(const ChartOf& chart);
// A key as a <ul>; empty if it has no entries.
std::string Key(const std::vector<KeyEntry>& key);
// A curve without axes, for narrow places. The label `most` (the largest value) is above it, `span`
// (its period) below; `room` is the number of values that fill the width.
std::string SmallChart(const std::string& name, const std::vector<double>& values, size_t room,
                       const std::string& most, const std::string& span);

// The axis below a plot from `top` to `floor`: a grid line and a word a tick, the words at `words`;
// all in pixels.
std::string AxisBelow(const Scale& scale, double top, double floor, double words);
// The square of a key entry, 16 pixels wide: an <svg> at `place` ("x=... y=..."; empty in a page).
std::string Swatch(const KeyEntry& entry, const std::string& place = "");

}  // namespace tidepool
