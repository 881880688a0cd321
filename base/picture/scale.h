// Scale: the numbers at an axis, with their unit.
//
// Any thread; value types and pure functions.
#pragma once

#include <string>
#include <vector>

namespace tidepool {

// What an axis counts. Bytes go by 1024, all others by 1000; a share is 1 for the whole.
enum class AxisUnit { kPlain, kCount, kBytes, kSeconds, kShare };

// A number at an axis.
struct Tick {
  double value = 0;
  std::string label;  // with its unit: "20 ms", "1.5 GiB", "40 %"
};

// An axis from `least` to `most`, both of which are ticks where it was rounded outwards.
struct Scale {
  double least = 0, most = 1;
  std::vector<Tick> ticks{};

  // 0 at `least`, 1 at `most`, no less and no more.
  double ShareOf(double value) const;
};

// At most `count` steps of 1, 2 or 5 times a power of ten (in the unit of the labels), and both
// ends on one. `behind` stands behind each unit: "/s".
Scale RoundScale(double least, double most, AxisUnit unit, const std::string& behind = "",
                 int count = 4);
// The same steps, and both ends as they are.
Scale ExactScale(double least, double most, AxisUnit unit, int count = 4);

}  // namespace tidepool
