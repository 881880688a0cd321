#include "bench/harness/median.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace tidepool::bench {

double Median(std::vector<double> values) {
  return Percentile(std::move(values), 0.5);
}

double Percentile(std::vector<double> values, double share) {
  TP_CHECK(!values.empty(), "a percentile of nothing");
  std::sort(values.begin(), values.end());
  const double position = share * static_cast<double>(values.size() - 1);
  return values[static_cast<size_t>(std::lround(position))];
}

}  // namespace tidepool::bench
