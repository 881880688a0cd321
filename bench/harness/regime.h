// Regime: the state of the machine during a measurement, detected by the round trip of a word
// between two CPUs.
//
// Virtual machines change: for minutes both CPUs share one link to memory, then each has its own;
// the round trip between them is then four times as long, and the bandwidth nearly doubles. A
// measurement across such a change compares two machines.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "base/clock.h"

namespace tidepool::bench {

// In nanoseconds; 0 with one CPU. Takes a millisecond.
using RoundTrip = std::function<double()>;
double MeasureRoundTripNs();

// The least factor of the round trip at a regime change: 110 to 130 ns became 450 to 520 ns where
// it was observed.
inline constexpr double kRegimeFactor = 1.6;
bool SameRegime(double one_ns, double other_ns);

// Round trips before and after a measurement.
struct RegimeSpan {
  double low_ns = 0, high_ns = 0;
};

// RegimeWatch: checks the regime between measurements. One thread.
class RegimeWatch {
 public:
  explicit RegimeWatch(RoundTrip round_trip)
      : round_trip_(std::move(round_trip)), last_ns_(round_trip_()) {}
  // The regime since the last call. A call shortly after another returns the same span.
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
