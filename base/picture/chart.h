// Chart: curves over time or steps, with axes, units and a key, as a part of a page without
// scripts. The same text fits any width: positions are shares of it.
//
// Any thread; pure functions. The page has PictureStyle.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/picture/scale.h"

namespace tidepool {

// One curve; NaN where nothing is known.
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
// A stretch of a lane.
struct Stretch {
  double from = 0, to = 0;
  std::string_view ink;
};
// A strip below the curves that says what was the case.
struct Lane {
  std::string name;  // short: it stands beside the strip
  std::vector<Stretch> stretches{};
};
// An ink and what it means.
struct KeyEntry {
  std::string_view ink;
  std::string text;
  char letter = ' ';  // in the swatch; ' ': none
};

// What a chart shows.
struct ChartOf {
  std::string title{};
  // From left to right, in order; as many as each curve has values.
  std::vector<double> at{};
  std::vector<Curve> curves{};
  Scale x{}, y{};
  std::string x_name{};       // "the time since the first look"
  std::vector<Mark> marks{};  // dots in the ink "due"
  std::vector<Lane> lanes{};
  std::vector<KeyEntry> key{};  // beside the curves'
  double height = 120;          // pixels of the curves' part
};

// A <figure> with title, picture and key.
std::string Chart(const ChartOf& chart);
// The <ul> of a key.
std::string Key(const std::vector<KeyEntry>& key);
// A curve without axes beside it, for narrow places: its largest value above it, its time below.
std::string SmallChart(const std::string& name, const std::vector<double>& values, size_t room,
                       const std::string& most, const std::string& span);

// Text with its special characters escaped, for HTML and SVG.
std::string InPage(const std::string& text);
// A position or size, with two digits behind the point at most.
std::string Place(double value);
// `share` of the width: "12.5%".
std::string Across(double share);
// The square of a key, 16 pixels: an <svg> at `place` ("x=... y=..."; empty in a page).
std::string Swatch(const KeyEntry& entry, const std::string& place = "");

}  // namespace tidepool
