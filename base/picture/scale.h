// Scale: the range and the tick labels of an axis, with their unit.
//
// Any thread; value types and pure functions.
#pragma once

#include <string>
#include <vector>

namespace tidepool {

// The unit of an axis. Prefixes of bytes are powers of 1024, of counts powers of 1000; the share 1
// is 100 %.
enum class AxisUnit { kPlain, kCount, kBytes, kSeconds, kShare };

// A labelled value of an axis.
struct Tick {
  double value = 0;
  std::string label;  // with its unit: "20 ms", "1.5 GiB", "40 %"
};

// An axis from `least` to `most`. Both are ticks if it is a RoundScale.
struct Scale {
  double least = 0, most = 1;
  std::vector<Tick> ticks{};

  // The position of a value: 0 at `least`, 1 at `most`; other values are clamped.
  double ShareOf(double value) const;
};

// An axis with about `count` steps of 1, 2 or 5 times a power of ten (in the unit of the labels),
// whose ends are rounded outwards to a step. `behind` follows each unit: "/s".
Scale RoundScale(double least, double most, AxisUnit unit, const std::string& behind = "",
                 int count = 4);
// The same steps, with the ends unrounded.
Scale ExactScale(double least, double most, AxisUnit unit, int count = 4);

}  // namespace tidepool
