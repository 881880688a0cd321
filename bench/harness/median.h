// Median and Percentile of measured values.
//
// Any thread; pure functions.
#pragma once

#include <vector>

namespace tidepool::bench {

// The middle value, and the value below which `share` of all lie. Both sort a copy; empty input is
// an error of the caller.
double Median(std::vector<double> values);
double Percentile(std::vector<double> values, double share);

}  // namespace tidepool::bench
