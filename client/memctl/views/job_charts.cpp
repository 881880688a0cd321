#include "client/memctl/views/job_charts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/picture/chart.h"

namespace tidepool::client {
namespace {

constexpr double kUntold = std::numeric_limits<double>::quiet_NaN();

struct PhaseInk {
  std::string_view phase, ink;
};
constexpr auto kPhases = std::to_array<PhaseInk>({{"forward", "coming"},
                                                  {"backward", "going"},
                                                  {"ending", "complete"},
                                                  {"updating", "updating"}});

double Known(double value) {
  return value > 0 ? value : kUntold;
}

// The smallest and largest known value of all curves.
struct Extent {
  double least = 0, most = 0;
  bool known = false;
};
Extent ExtentOf(const std::vector<Curve>& curves) {
  Extent extent;
  for (const Curve& curve : curves) {
    for (const double value : curve.values) {
      if (std::isnan(value)) continue;
      extent.least = extent.known ? std::min(extent.least, value) : value;
      extent.most = extent.known ? std::max(extent.most, value) : value;
      extent.known = true;
    }
  }
  return extent;
}

Curve CurveOf(std::span<const JobSample> samples, const char* name, std::string_view ink,
              double JobSample::*value) {
  Curve curve{name, ink, {}};
  for (const JobSample& sample : samples) curve.values.push_back(sample.*value);
  return curve;
}

// A lane of stretches; adjacent looks with the same ink share one. An empty ink leaves a gap.
template <typename InkOf>
Lane LaneOf(std::span<const JobSample> samples, const char* name, const InkOf& ink_of) {
  Lane lane{name, {}};
  for (size_t i = 0; i + 1 < samples.size(); ++i) {
    const std::string_view ink = ink_of(samples[i]);
    const double from = samples[i].at, to = samples[i + 1].at;
    if (ink.empty()) continue;

    if (!lane.stretches.empty() && lane.stretches.back().ink == ink &&
        lane.stretches.back().to == from) {
      lane.stretches.back().to = to;
    } else {
      lane.stretches.push_back({from, to, ink});
    }
  }
  return lane;
}

std::string_view PhaseInkOf(const JobSample& sample) {
  for (const PhaseInk& each : kPhases) {
    if (each.phase == sample.phase) return each.ink;
  }
  return "";
}

std::string_view SharedInkOf(const JobSample& sample) {
  return sample.cpus_shared ? "due" : "";
}

class Charts {
 public:
  Charts(std::span<const JobSample> samples, const Scale& x, const std::string& x_name)
      : samples_(samples) {
    base_.x = x;
    base_.x_name = x_name;
    for (const JobSample& sample : samples) base_.at.push_back(sample.at);
  }

  std::string Take() {
    const Curve loss = CurveOf(samples_, "loss", "accent", &JobSample::loss);
    Add("Loss", {loss}, ExtentOf({loss}).least, AxisUnit::kPlain);
    Add("Tokens a second",
        {CurveOf(samples_, "tokens a second", "held", &JobSample::tokens_per_second)}, 0,
        AxisUnit::kCount);
    Add("Fetches that waited for an update, of the step before",
        {CurveOf(samples_, "share that waited", "due", &JobSample::waited_share)}, 0,
        AxisUnit::kShare);

    Add("Time that these fetches waited, together",
        {CurveOf(samples_, "time waited", "due", &JobSample::waited_seconds)}, 0,
        AxisUnit::kSeconds);
    base_.lanes = {LaneOf(samples_, "phase", PhaseInkOf), LaneOf(samples_, "CPUs", SharedInkOf)};
    for (const PhaseInk& each : kPhases) base_.key.push_back({each.ink, std::string(each.phase)});
    base_.key.push_back({"due", "CPUs: its threads share them with others"});

    Add("Time of a step",
        {CurveOf(samples_, "the last step", "accent", &JobSample::step_seconds),
         CurveOf(samples_, "p50", "held", &JobSample::p50_seconds),
         CurveOf(samples_, "p99 of the last 128", "due", &JobSample::p99_seconds)},
        0, AxisUnit::kSeconds);
    return html_.empty() ? "" : "<div class=\"charts\">" + html_ + "</div>\n";
  }

 private:
  void Add(const char* title, std::vector<Curve> curves, double least, AxisUnit unit) {
    const Extent extent = ExtentOf(curves);
    if (!extent.known) return;
    ChartOf chart = base_;
    chart.title = title;
    chart.y = RoundScale(least, extent.most, unit);
    chart.curves = std::move(curves);
    html_ += Chart(chart);
  }

  std::span<const JobSample> samples_;
  ChartOf base_;
  std::string html_;
};

}  // namespace

JobSample SampleOf(double at, const JobView& job, const ResidencyJob* seen) {
  JobSample sample{.at = at, .version = job.version, .phase = {}};
  sample.loss = job.loss.value_or(kUntold);
  sample.tokens_per_second = Known(job.tokens_per_second);
  sample.step_seconds = Known(job.step_seconds);
  sample.p50_seconds = Known(job.step_seconds_p50);
  sample.p99_seconds = Known(job.step_seconds_p99);
  sample.cpus_shared = job.cpus_shared;
  if (seen == nullptr) return sample;

  sample.phase = seen->phase;
  if (seen->fetches > 0) {
    sample.waited_share =
        static_cast<double>(seen->fetches_waited) / static_cast<double>(seen->fetches);
    sample.waited_seconds = seen->fetch_wait_seconds;
  }
  return sample;
}

std::string JobCharts(std::span<const JobSample> samples, const Scale& x,
                      const std::string& x_name) {
  return Charts(samples, x, x_name).Take();
}

}  // namespace tidepool::client
