#include "client/memctl/page/page_pictures.h"

#include <algorithm>
#include <array>

#include "base/picture/chart.h"
#include "base/text/json_writer.h"
#include "base/units.h"
#include "client/memctl/views/residency_page.h"

namespace tidepool::client {
namespace {

// A counter of memserver. Its rate is shown in a tile.
struct Counter {
  const char* id;
  const char* name;
  uint64_t StatusView::*value;
  bool bytes, nvme;
};
constexpr auto kCounters = std::to_array<Counter>(
    {{"to-ranks", "To ranks", &StatusView::bytes_h2d, true, false},
     {"from-ranks", "From ranks", &StatusView::bytes_d2h, true, false},
     {"updates", "Parameters updated", &StatusView::parameters_updated, false, false},
     {"nvme-read", "NVMe read", &StatusView::nvme_read, true, true},
     {"nvme-written", "NVMe written", &StatusView::nvme_written, true, true}});

std::string RateText(double value, bool bytes) {
  const auto whole = static_cast<uint64_t>(value);
  return (bytes ? FormatBytes(whole) : FormatCount(whole)) + "/s";
}

void DrawJob(const ResidencyJob& job, const std::string& charts, JsonWriter* json) {
  json->Key(std::to_string(job.id))
      .BeginObject()
      .Field("fold", uint64_t{FoldOf(job.chunks, kCellsMax)})
      .Field("ruler", Ruler(job));
  json->Key("rows").BeginArray();
  for (const ResidencyRow& row : job.rows) json->String(Stripe(row, {}));
  json->EndArray().Field("charts", charts).EndObject();
}

}  // namespace

void PagePictures::AddRates(const StatusView& status) {
  const double seconds = looked_at_ < 0 ? 0 : status.uptime_seconds - looked_at_;
  for (const Counter& counter : kCounters) {
    Rate& rate = rates_[counter.id];
    const uint64_t now = status.*counter.value;
    const bool counts = rate.known && now >= rate.before && seconds > 0;
    rate.values.push_back(counts ? static_cast<double>(now - rate.before) / seconds : 0);
    if (rate.values.size() > kRatesShown) rate.values.erase(rate.values.begin());
    rate.before = now;
    rate.known = true;
  }
}

void PagePictures::AddJobs(const StatusView& status, const std::vector<JobView>& jobs,
                           const ResidencyView& residency) {
  const double now = status.uptime_seconds;
  std::erase_if(samples_, [&](const auto& each) {
    return std::none_of(jobs.begin(), jobs.end(),
                        [&](const JobView& job) { return job.id == each.first; });
  });

  for (const JobView& job : jobs) {
    const auto seen = std::find_if(residency.jobs.begin(), residency.jobs.end(),
                                   [&](const ResidencyJob& each) { return each.id == job.id; });
    auto& samples = samples_[job.id];
    samples.push_back(SampleOf(now, job, seen == residency.jobs.end() ? nullptr : &*seen));
    while (samples.size() > 2 && samples[1].at < now - kSecondsShown) samples.pop_front();
  }
}

Result<std::string> PagePictures::Draw(const std::string& status_json, const std::string& jobs_json,
                                       const std::string& residency_json) {
  TP_ASSIGN_OR_RETURN(const StatusView status, ReadStatus(status_json));
  TP_ASSIGN_OR_RETURN(const std::vector<JobView> jobs, ReadJobs(jobs_json));
  TP_ASSIGN_OR_RETURN(const ResidencyView residency, ReadResidency(residency_json));
  if (status.uptime_seconds < looked_at_) {  // memserver was restarted
    rates_.clear();
    samples_.clear();
    looked_at_ = -1;
  }

  AddRates(status);
  AddJobs(status, jobs, residency);
  looked_at_ = status.uptime_seconds;

  JsonWriter json;
  json.BeginObject().Key("rates").BeginObject();
  for (const Counter& counter : kCounters) {
    if (counter.nvme && status.nvme_bytes == 0) continue;
    const std::vector<double>& values = rates_[counter.id].values;
    const double most = *std::max_element(values.begin(), values.end());
    json.Key(counter.id).BeginObject().Field("now", values.back());
    json.Field("picture", SmallChart(counter.name, values, kRatesShown,
                                     RateText(most, counter.bytes), "2 min ago"))
        .EndObject();
  }
  json.EndObject().Field("key", Key(KeyOf(residency))).Key("jobs").BeginObject();

  for (const ResidencyJob& job : residency.jobs) {
    std::vector<JobSample> samples(samples_[job.id].begin(), samples_[job.id].end());
    for (JobSample& sample : samples) sample.at -= status.uptime_seconds;
    const double from =
        samples.empty() ? -20 : std::clamp(samples.front().at, -kSecondsShown, -20.0);
    DrawJob(job, JobCharts(samples, ExactScale(from, 0, AxisUnit::kSeconds), "the time until now"),
            &json);
  }
  return json.EndObject().EndObject().Take();
}

}  // namespace tidepool::client
