// JobCharts: charts of a job's training over time: loss, tokens per second, step times, and whether
// its threads share CPUs.
//
// One thread; value types and pure functions. The page and the report draw the same charts from
// their looks; the page looks twice a second.
#pragma once

#include <span>
#include <string>

#include "base/picture/scale.h"
#include "client/admin/views.h"

namespace tidepool::client {

// The state of a job at one look.
struct JobSample {
  double at = 0;  // seconds
  uint64_t version = 0;
  std::string phase{};                                        // of the open step; empty: none
  double loss = 0, tokens_per_second = 0;                     // NaN: not reported
  double step_seconds = 0, p50_seconds = 0, p99_seconds = 0;  // NaN: not known yet
  bool cpus_shared = false;
  double waited_share = 0;    // share of the previous step's fetches that waited
  double waited_seconds = 0;  // how long these waited, together
};
// The sample of a job at second `at`. `seen`: its residency report; null if there is none.
JobSample SampleOf(double at, const JobView& job, const ResidencyJob* seen);

// Charts over the axis `x`: loss, tokens per second, fetches that waited and for how long, and step
// times with the phases and the sharing of CPUs below. A chart without known values is left out.
std::string JobCharts(std::span<const JobSample> samples, const Scale& x,
                      const std::string& x_name);

}  // namespace tidepool::client
