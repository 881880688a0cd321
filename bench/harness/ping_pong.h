// PingPong: what every message between two cores costs at least: one word to and fro, each in its
// own cache line.
//
// The calling thread plays one side; the other runs beside it. Both stand on the CPUs of TwoCores.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace tidepool::bench {

// The CPUs on which two sides stand: the first two that this process may use; the same one where
// there is no other.
struct TwoCores {
  int mine = 0, other = 0;
};
// Reads the affinity of the calling thread.
TwoCores FindTwoCores();

inline constexpr int kWarmUpTrips = 200;  // done first, and not counted
// Microseconds of up to `count` round trips; fewer on a machine whose cores are all taken.
std::vector<double> TimeRoundTrips(int count, const std::function<void()>& round_trip);
// The same, of the bare word.
std::vector<double> TimePingPong(int count, const TwoCores& cores);

}  // namespace tidepool::bench
