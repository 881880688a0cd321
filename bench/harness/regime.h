// Regime: what the machine is like while something is measured, as far as the round trip of a word
// between two CPUs tells it.
//
// Virtual machines move: for minutes both CPUs lie behind one link of the memory, then each has its
// own; the round trip between them is four times as long, and the bandwidth nearly twice. What was
// measured across such a change compares two machines.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "base/clock.h"

namespace tidepool::bench {

// Nanoseconds; 0 where there is one CPU. Takes a millisecond.
using RoundTrip = std::function<double()>;
double MeasureRoundTripNs();

// How many times longer the round trip becomes when the regime changes, at least: 110 to 130 ns
// became 450 to 520 ns where it was seen.
inline constexpr double kRegimeFactor = 1.6;
bool SameRegime(double one_ns, double other_ns);

// Round trips on both sides of what was measured.
struct RegimeSpan {
  double low_ns = 0, high_ns = 0;
};

// RegimeWatch: looks at the regime between measurements. One thread.
class RegimeWatch {
 public:
  explicit RegimeWatch(RoundTrip round_trip)
      : round_trip_(std::move(round_trip)), last_ns_(round_trip_()) {}
  // What was measured since the last look. A look that follows within a moment sees the same span.
  RegimeSpan Look();

 private:
  static constexpr int64_t kMomentNs = 100 * kNsPerMs;
  SteadyClock clock_;
  RoundTrip round_trip_;
  double last_ns_;
  RegimeSpan span_;
  int64_t looked_at_ns_ = INT64_MIN;
};

}  // namespace tidepool::bench
