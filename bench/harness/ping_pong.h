// PingPong: the least cost of a message between two cores: one word back and forth, each in its own
// cache line.
//
// The calling thread is one side, another thread the other; both are pinned to CPUs of TwoCores.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace tidepool::bench {

// The CPUs of the two sides: the first two that this process may use; the same one twice if there
// is only one.
struct TwoCores {
  int mine = 0, other = 0;
};
// Uses the affinity of the calling thread.
TwoCores FindTwoCores();

inline constexpr int kWarmUpTrips = 200;  // run first, not counted
// Microseconds of up to `count` round trips; fewer on a machine with all cores busy.
std::vector<double> TimeRoundTrips(int count, const std::function<void()>& round_trip);
// The same for a bare word.
std::vector<double> TimePingPong(int count, const TwoCores& cores);

}  // namespace tidepool::bench
