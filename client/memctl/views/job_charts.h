// JobCharts: how the training of a job goes over time: loss, tokens a second, how long its steps
// take, and whether its threads share CPUs.
//
// One thread; value types and pure functions. The page and the report draw the same from what they
// saw, twice a second or as often as they looked.
#pragma once

#include <span>
#include <string>

#include "base/picture/scale.h"
#include "client/admin/views.h"

namespace tidepool::client {

// What one look saw of a job.
struct JobSample {
  double at = 0;  // seconds
  uint64_t version = 0;
  std::string phase{};                                        // of its open step; empty: none
  double loss = 0, tokens_per_second = 0;                     // NaN: not told
  double step_seconds = 0, p50_seconds = 0, p99_seconds = 0;  // NaN: not known yet
  bool cpus_shared = false;
  double waited_share = 0;  // of the fetches of the step before, those that waited
};
JobSample SampleOf(double at, const JobView& job, const ResidencyJob* seen);

// Three charts over the axis `x`: loss, tokens a second, and step times with the phases and the
// sharing of CPUs below. What no rank tells has no chart.
std::string JobCharts(std::span<const JobSample> samples, const Scale& x,
                      const std::string& x_name);

}  // namespace tidepool::client
