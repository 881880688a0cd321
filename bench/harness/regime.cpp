#include "bench/harness/regime.h"

#include <algorithm>
#include <utility>

#include "bench/harness/ping_pong.h"
#include "bench/harness/median.h"

namespace tidepool::bench {

double MeasureRoundTripNs() {
  constexpr int kTrips = 1000;
  const TwoCores cores = FindTwoCores();
  return cores.mine == cores.other ? 0 : Median(TimePingPong(kTrips, cores)) * 1e3;
}

bool SameRegime(double one_ns, double other_ns) {
  return std::max(one_ns, other_ns) <= kRegimeFactor * std::min(one_ns, other_ns);
}

RegimeSpan RegimeWatch::Look() {
  const int64_t now = clock_.NowNs();
  if (looked_at_ns_ != INT64_MIN && now - looked_at_ns_ < kMomentNs) return span_;

  const double before = std::exchange(last_ns_, round_trip_());
  span_ = {std::min(before, last_ns_), std::max(before, last_ns_)};
  looked_at_ns_ = clock_.NowNs();
  return span_;
}

}  // namespace tidepool::bench
