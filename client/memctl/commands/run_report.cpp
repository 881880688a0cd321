#include "client/memctl/commands/run_report.h"

#include <algorithm>

#include "base/picture/chart.h"
#include "base/text/plural.h"
#include "base/units.h"
#include "client/memctl/views/job_charts.h"
#include "client/memctl/views/render.h"
#include "client/memctl/views/residency_page.h"

namespace tidepool::client {
namespace {

constexpr double kHistoryRow = 5;    // height of one look, in pixels
constexpr size_t kHistoryMax = 160;  // rows; of more looks, every n-th is shown

double SecondsAt(const std::vector<RunMoment>& moments, size_t i) {
  return moments[i].status.uptime_seconds - moments.front().status.uptime_seconds;
}

constexpr const char* kTimeName = "the time since the first look";

Scale TimeOf(const std::vector<RunMoment>& moments) {
  return ExactScale(0, SecondsAt(moments, moments.size() - 1), AxisUnit::kSeconds);
}

double Share(uint64_t used, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(used) / static_cast<double>(whole);
}

std::string MemoryChart(const std::vector<RunMoment>& moments) {
  const StatusView& last = moments.back().status;
  ChartOf chart{.title = "Memory in use, by tier",
                .x = TimeOf(moments),
                .y = RoundScale(0, 1, AxisUnit::kShare),
                .x_name = kTimeName};
  chart.curves = {{"host pool, of " + FormatBytes(last.pool_bytes), "accent", {}},
                  {"rCaches, of " + FormatBytes(last.rcache_limit), "held", {}}};
  if (last.nvme_bytes > 0)
    chart.curves.push_back({"NVMe, of " + FormatBytes(last.nvme_bytes), "due", {}});

  for (size_t i = 0; i < moments.size(); ++i) {
    const StatusView& status = moments[i].status;
    chart.at.push_back(SecondsAt(moments, i));
    chart.curves[0].values.push_back(Share(status.pool_used, status.pool_bytes));
    chart.curves[1].values.push_back(Share(status.rcache_used, status.rcache_limit));
    if (chart.curves.size() > 2)
      chart.curves[2].values.push_back(Share(status.nvme_used, status.nvme_bytes));
  }
  return "<section class=\"card\">" + Chart(chart) + "</section>\n";
}

// Sealed steps over time.
std::string StepChart(const std::vector<RunMoment>& moments, uint64_t id) {
  ChartOf steps{.title = "Sealed steps", .x = TimeOf(moments), .x_name = kTimeName};
  steps.curves = {{"sealed steps", "accent", {}}};

  double first = -1, last = 0;
  for (size_t i = 0; i < moments.size(); ++i) {
    const ResidencyJob* job = JobAt(moments[i], id);
    if (job != nullptr) last = static_cast<double>(job->version);
    if (job != nullptr && first < 0) first = last;
    steps.at.push_back(SecondsAt(moments, i));
    steps.curves[0].values.push_back(last);
  }

  const auto whole = [](double value) {
    return std::to_string(static_cast<uint64_t>(std::max(value, 0.0)));
  };
  steps.curves[0].name += ", " + whole(first) + " to " + whole(last);
  steps.y = RoundScale(std::max(first, 0.0), std::max(last, first + 1), AxisUnit::kCount);
  return "<div class=\"charts\">" + Chart(steps) + "</div>\n";
}

// The server's training figures over time.
std::string TrainingCharts(const std::vector<RunMoment>& moments, uint64_t id) {
  std::vector<JobSample> samples;
  for (size_t i = 0; i < moments.size(); ++i) {
    const auto job = std::find_if(moments[i].jobs.begin(), moments[i].jobs.end(),
                                  [id](const JobView& each) { return each.id == id; });
    if (job != moments[i].jobs.end())
      samples.push_back(SampleOf(SecondsAt(moments, i), *job, JobAt(moments[i], id)));
  }
  return JobCharts(samples, TimeOf(moments), kTimeName);
}

// The indices of the looks that the history shows.
std::vector<size_t> ShownLooks(size_t looks) {
  std::vector<size_t> shown;
  const size_t apart = DivideUp(looks, kHistoryMax);
  for (size_t i = 0; i < looks; i += apart) shown.push_back(i);
  return shown;
}

// Chunks from left to right, time from top to bottom, for each row of the job.
std::string Histories(const std::vector<RunMoment>& moments, const ResidencyJob& job) {
  const std::vector<size_t> shown = ShownLooks(moments.size());
  const double height = static_cast<double>(shown.size()) * kHistoryRow;
  const Scale time = TimeOf(moments);
  std::string html;

  for (size_t place = 0; place < job.rows.size(); ++place) {
    const std::string label = InPage(LabelOf(job.rows[place]));
    html += "<figure class=\"picture\"><figcaption>" + label +
            " <span class=\"soft\">chunks from left to right, time from top to "
            "bottom</span></figcaption><svg class=\"chart\" height=\"" +
            Place(height + 20) + "\" role=\"img\" aria-label=\"" + label + " over time\">" +
            Ruler(job);
    for (size_t i = 0; i < shown.size(); ++i) {
      const ResidencyJob* then = JobAt(moments[shown[i]], job.id);
      // The job did not exist yet, or had other ranks.
      if (then == nullptr || then->rows.size() != job.rows.size()) continue;
      const double y = 18 + static_cast<double>(i) * kHistoryRow;
      html += Stripe(then->rows[place], {kHistoryRow, "y=\"" + Place(y) + "\"", {}});
    }

    double free_from = 0;  // lower end of the previous label
    for (const Tick& tick : time.ticks) {
      const double y = 18 + time.ShareOf(tick.value) * height;
      if (y < free_from || y > height + 18) continue;
      free_from = y + 14;
      html += SvgText("tick end", "-8", y + 4, tick.label);
    }
    html += "</svg></figure>\n";
  }
  return html;
}

std::string JobTable(const std::vector<JobView>& jobs) {
  std::string html =
      "<div "
      "class=\"scroll\"><table><tr><th>job</th><th>state</th><th>ranks</th><th>steps</th><th>host "
      "pool</th><th>NVMe</th><th>rCaches</th></tr>\n";

  for (const JobView& job : jobs) {
    html += "<tr><td>" + InPage(job.name) + "</td><td>" + InPage(StateText(job)) + "</td><td>" +
            std::to_string(job.ranks_attached) + "/" + std::to_string(job.world) + "</td><td>" +
            std::to_string(job.version) + "</td><td>" + FormatBytes(job.pool_bytes) + "</td><td>" +
            FormatBytes(job.nvme_bytes) + "</td><td>" + FormatBytes(job.rcache_bytes) +
            "</td></tr>\n";
  }
  return html + "</table></div>\n";
}

}  // namespace

std::string RenderReport(const std::vector<RunMoment>& moments,
                         const std::vector<StepMetrics>& steps) {
  const RunMoment& last = moments.back();
  std::string html = PageHead("Tidepool run");
  html += "<h1>Tidepool run</h1>\n<p>memserver " + InPage(last.status.version) + ", " +
          InPage(last.status.state) + "; " + Counted(moments.size(), "look") + " in " +
          FormatDuration(SecondsAt(moments, moments.size() - 1)) + "; " +
          FormatBytes(last.status.pool_used) + " of " + FormatBytes(last.status.pool_bytes) +
          " of host memory used</p>\n";
  html += JobTable(last.jobs) + MemoryChart(moments);

  for (const ResidencyJob& job : last.residency.jobs) {
    html += "<section class=\"card\"><h2>Job " + InPage(job.name) + "</h2>\n" +
            TrainingCharts(moments, job.id) + StepChart(moments, job.id) + ResidencyGrid(job) +
            Key(KeyOf(last.residency)) + Histories(moments, job) + "</section>\n";
  }
  return html + RenderMetrics(steps) + "</body></html>\n";
}

Result<Shown> RunReport(const Invocation& invocation, const Style&) {
  TP_ASSIGN_OR_RETURN(const std::vector<RunMoment> moments, MomentsFor(invocation));
  std::vector<StepMetrics> steps;
  if (!invocation.metrics.empty()) {
    TP_ASSIGN_OR_RETURN(steps, ReadMetrics(invocation.metrics));
  }
  TP_RETURN_IF_ERROR(WriteWhole(invocation.target, RenderReport(moments, steps)));
  const std::string and_steps =
      steps.empty() ? "" : ", " + Counted(steps.size(), "step") + " of the trainer";
  return Shown{invocation.target + ": " + Counted(moments.size(), "look") + and_steps + "\n", ""};
}

}  // namespace tidepool::client
