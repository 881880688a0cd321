// StepTimes: durations of a job's steps: a histogram of all, percentiles of the last ones.
//
// A value, not thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace tidepool::memserver {

struct StepTimes {
  // Upper bounds of the histogram's buckets, in seconds; one more bucket has no bound.
  static constexpr std::array<double, 16> kBounds = {
      0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100};

  uint64_t count = 0;
  double sum = 0;                                      // seconds
  std::array<uint64_t, kBounds.size() + 1> buckets{};  // steps per bucket, not cumulative
  double p50 = 0, p99 = 0;                             // seconds; 0: no step yet

  // Counts one more step. The caller sets the percentiles.
  void Add(double seconds) {
    const auto bucket = std::lower_bound(kBounds.begin(), kBounds.end(), seconds);
    ++buckets[static_cast<size_t>(bucket - kBounds.begin())];
    ++count;
    sum += seconds;
  }
};

}  // namespace tidepool::memserver
