// Median and Percentile of measured values.
//
// Any thread; pure functions.
#pragma once

#include <vector>

namespace tidepool::bench {

// The middle value; and the value below which the fraction `share` lies. Both sort a copy; `values`
// must not be empty.
double Median(std::vector<double> values);
double Percentile(std::vector<double> values, double share);

}  // namespace tidepool::bench
