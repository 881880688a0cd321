#include "client/memctl/commands/run_report.h"

#include <algorithm>
#include <array>

#include "base/units.h"
#include "client/memctl/views/charts.h"
#include "client/memctl/views/trainer_metrics.h"

namespace tidepool::client {
namespace {

constexpr double kWidth = kChartWidth, kRowHeight = 4, kPictureRow = 14;
constexpr size_t kColumnsMax = 300;  // of a picture; beyond that, chunks share columns

constexpr const char* kHead = R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Tidepool run</title><style>
body{font:14px/1.4 system-ui,sans-serif;margin:2em auto;max-width:960px;color:#1b2330;background:#fff}
h1,h2{font-weight:600}h2{margin-top:2em}svg{display:block;background:#f6f8fa;margin:.5em 0}
table{border-collapse:collapse}td,th{padding:.2em .8em .2em 0;text-align:right}td:first-child,th:first-child{text-align:left}
.span{color:#57606a;margin:0 0 1em}.key span{display:inline-block;width:.9em;height:.9em;margin:0 .3em 0 1em;vertical-align:-.1em}
</style></head><body>
)";

struct Ink {
  char letter;
  const char* colour;
};
constexpr auto kInks = std::to_array<Ink>({{'C', "#2da44e"},
                                           {'c', "#7fc99a"},
                                           {'>', "#8ddb8c"},
                                           {'<', "#d4a72c"},
                                           {'_', "#d0d7de"},
                                           {'.', "#a8c7fa"},
                                           {'g', "#f2cc60"},
                                           {'G', "#e3a008"},
                                           {'O', "#fb8f44"},
                                           {'A', "#cf222e"},
                                           {'=', "#54aeff"},
                                           {'N', "#8250df"},
                                           {'W', "#8250df"},
                                           {'w', "#bf87ff"},
                                           {'-', "#eaeef2"}});

const char* ColourOf(char letter) {
  const auto found = std::find_if(kInks.begin(), kInks.end(),
                                  [letter](const Ink& ink) { return ink.letter == letter; });
  return found == kInks.end() ? "#57606a" : found->colour;
}

double SecondsAt(const std::vector<RunMoment>& moments, size_t i) {
  return moments[i].status.uptime_seconds - moments.front().status.uptime_seconds;
}

// Curves over the time of the looks, scaled from 0 to `most`.
std::string OverTime(const std::vector<RunMoment>& moments, std::vector<Curve> curves, double most,
                     const std::string& top) {
  ChartOf chart;
  chart.curves = std::move(curves);
  chart.most = most;
  for (size_t i = 0; i < moments.size(); ++i) chart.at.push_back(SecondsAt(moments, i));
  chart.span = "0 to " + FormatDuration(chart.at.back()) + ", 0 to " + top;
  return Chart(chart);
}

double Share(uint64_t used, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(used) / static_cast<double>(whole);
}

std::string MemoryChart(const std::vector<RunMoment>& moments) {
  const StatusView& last = moments.back().status;
  std::vector<Curve> curves{{"host pool, of " + FormatBytes(last.pool_bytes), "#0969da", {}},
                            {"rCaches, of " + FormatBytes(last.rcache_limit), "#2da44e", {}}};
  if (last.nvme_bytes > 0)
    curves.push_back({"NVMe, of " + FormatBytes(last.nvme_bytes), "#8250df", {}});

  for (const RunMoment& moment : moments) {
    curves[0].values.push_back(Share(moment.status.pool_used, moment.status.pool_bytes));
    curves[1].values.push_back(Share(moment.status.rcache_used, moment.status.rcache_limit));
    if (curves.size() > 2)
      curves[2].values.push_back(Share(moment.status.nvme_used, moment.status.nvme_bytes));
  }
  return "<h2>Memory by tier</h2>\n" + OverTime(moments, curves, 1, "100 %");
}

// Sealed steps, and the share of fetches that waited for an update: fetched too early, or updated
// too late.
std::string StepChart(const std::vector<RunMoment>& moments, uint64_t id) {
  Curve steps{"sealed steps", "#0969da", {}},
      waited{"fetches of the step before that waited, of all", "#cf222e", {}};
  double first = -1, last = 0;
  for (const RunMoment& moment : moments) {
    const ResidencyJob* job = JobAt(moment, id);
    if (job != nullptr) last = static_cast<double>(job->version);
    if (job != nullptr && first < 0) first = last;
    steps.values.push_back(first < 0 ? 0 : last - first);
    waited.values.push_back(job == nullptr ? 0 : Share(job->fetches_waited, job->fetches));
  }

  const double most = std::max(last - first, 1.0);
  for (double& value : waited.values) value *= most;
  const auto whole = [](double value) {
    return std::to_string(static_cast<uint64_t>(std::max(value, 0.0)));
  };
  steps.name += ", " + whole(first) + " to " + whole(last);
  return OverTime(moments, {steps, waited}, most, whole(most) + " steps, or 100 %");
}

using Columns = std::vector<ResidencyColumn>;

// The tooltip of a run of columns.
std::string TitleOf(const Columns& columns, size_t first, size_t last) {
  if (columns.empty()) return "";
  return "<title>" +
         InPage(columns[first].name + (first == last ? "" : " to " + columns[last].name)) +
         "</title>";
}

// One line of letters as coloured runs. In an rCache '.' is a chunk that the rank does not hold.
std::string Stripe(const ResidencyRow& row, double y, double height = kRowHeight,
                   const Columns& columns_of = {}) {
  std::string letters = row.letters;
  if (row.place.empty()) std::replace(letters.begin(), letters.end(), '.', '-');
  const size_t columns = std::min(letters.size(), kColumnsMax);
  std::string svg;
  for (size_t begin = 0; begin < columns;) {
    const auto letter_at = [&](size_t column) {
      return letters[column * letters.size() / columns];
    };
    size_t end = begin + 1;
    while (end < columns && letter_at(end) == letter_at(begin)) ++end;

    const double cell = kWidth / static_cast<double>(columns);
    svg += "<rect x=\"" + Number(static_cast<double>(begin) * cell) + "\" y=\"" + Number(y) +
           "\" width=\"" + Number(static_cast<double>(end - begin) * cell) + "\" height=\"" +
           Number(height) + "\" fill=\"" + ColourOf(letter_at(begin)) + "\"";
    const std::string title =
        TitleOf(columns_of, begin * letters.size() / columns, end * letters.size() / columns - 1);
    svg += title.empty() ? "/>" : ">" + title + "</rect>";
    begin = end;
  }
  return svg;
}

// Chunks from left to right, time from top to bottom, for each row of the job.
std::string Pictures(const std::vector<RunMoment>& moments, const ResidencyJob& job) {
  std::string html;
  for (size_t place = 0; place < job.rows.size(); ++place) {
    const ResidencyRow& row = job.rows[place];
    html += "<p>" +
            InPage(row.place.empty() ? "rCache of rank " + std::to_string(row.rank) : row.place) +
            "</p><svg width=\"" + Number(kWidth) + "\" height=\"" +
            Number(static_cast<double>(moments.size()) * kRowHeight) + "\" role=\"img\">";
    for (size_t i = 0; i < moments.size(); ++i) {
      const ResidencyJob* then = JobAt(moments[i], job.id);
      // The job did not exist yet, or had other ranks.
      if (then == nullptr || then->rows.size() != job.rows.size()) continue;
      html += Stripe(then->rows[place], static_cast<double>(i) * kRowHeight);
    }
    html += "</svg>\n";
  }
  return html;
}

// The server's legend, with its own text for '-'.
std::vector<std::pair<char, std::string>> LegendOf(const ResidencyView& residency) {
  auto legend = residency.legend;
  std::erase_if(legend, [](const auto& each) { return each.first == '-'; });
  legend.emplace_back('-', "not there");
  return legend;
}

std::string Legend(const ResidencyView& residency) {
  std::string html = "<p class=\"key\">";
  for (const auto& [letter, meaning] : LegendOf(residency)) {
    html += "<span style=\"background:" + std::string(ColourOf(letter)) + "\"></span>" +
            InPage(meaning);
  }
  return html + "</p>\n";
}

std::string JobTable(const std::vector<JobView>& jobs) {
  std::string html =
      "<table><tr><th>job</th><th>state</th><th>ranks</th><th>steps</th><th>host "
      "pool</th><th>NVMe</th><th>rCaches</th></tr>\n";

  for (const JobView& job : jobs) {
    html += "<tr><td>" + InPage(job.name) + "</td><td>" + InPage(StateText(job)) + "</td><td>" +
            std::to_string(job.ranks_attached) + "/" + std::to_string(job.world) + "</td><td>" +
            std::to_string(job.version) + "</td><td>" + FormatBytes(job.pool_bytes) + "</td><td>" +
            FormatBytes(job.nvme_bytes) + "</td><td>" + FormatBytes(job.rcache_bytes) +
            "</td></tr>\n";
  }
  return html + "</table>\n";
}

// Adds name and stripe of every row of a job, from `y` on; returns where the next job begins.
double AddJob(const ResidencyJob& job, double y, std::string* svg) {
  const auto line = [&](const std::string& text) {
    *svg += "<text x=\"0\" y=\"" + Number(y + 12) + "\">" + InPage(text) + "</text>\n";
    y += 16;
  };

  line("job " + job.name + "   " + job.state + (job.phase.empty() ? "" : ", " + job.phase) +
       "   step " + std::to_string(job.version));
  for (const ResidencyRow& row : job.rows) {
    line(row.place.empty() ? "rank " + std::to_string(row.rank) + " rCache" : row.place);
    *svg += Stripe(row, y, kPictureRow, job.columns) + "\n";
    y += kPictureRow + 6;
  }
  return y + 10;
}

}  // namespace

std::string RenderSvg(const ResidencyView& residency) {
  std::string rows;
  double y = 0;
  for (const ResidencyJob& job : residency.jobs) y = AddJob(job, y, &rows);
  double x = 0;
  for (const auto& [letter, meaning] : LegendOf(residency)) {
    rows += "<rect x=\"" + Number(x) + "\" y=\"" + Number(y) +
            "\" width=\"12\" height=\"12\" fill=\"" + ColourOf(letter) + "\"/><text x=\"" +
            Number(x + 16) + "\" y=\"" + Number(y + 11) + "\">" + InPage(meaning) + "</text>\n";
    x += 30 + 7 * static_cast<double>(meaning.size());
  }

  return "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + Number(std::max(kWidth, x)) +
         "\" height=\"" + Number(y + 16) +
         "\" font-family=\"system-ui,sans-serif\" font-size=\"12\" fill=\"#1b2330\">\n" + rows +
         "</svg>\n";
}

std::string RenderPicturePage(const ResidencyView& residency) {
  return kHead + ("<h1>Residency</h1>\n" + RenderSvg(residency)) + "</body></html>\n";
}

std::string RenderReport(const std::vector<RunMoment>& moments,
                         const std::vector<StepMetrics>& steps) {
  const RunMoment& last = moments.back();
  std::string html = kHead;
  html += "<h1>Tidepool run</h1>\n<p>memserver " + InPage(last.status.version) + ", " +
          InPage(last.status.state) + "; " + std::to_string(moments.size()) + " looks in " +
          FormatDuration(SecondsAt(moments, moments.size() - 1)) + "; " +
          FormatBytes(last.status.pool_used) + " of " + FormatBytes(last.status.pool_bytes) +
          " of host memory used</p>\n";
  html += JobTable(last.jobs) + MemoryChart(moments);

  for (const ResidencyJob& job : last.residency.jobs) {
    html += "<h2>Job " + InPage(job.name) + "</h2>\n" + StepChart(moments, job.id) +
            Pictures(moments, job);
  }
  return html + Legend(last.residency) + RenderMetrics(steps) + "</body></html>\n";
}

Result<Shown> RunReport(const Invocation& invocation, const Style&) {
  TP_ASSIGN_OR_RETURN(const std::vector<RunMoment> moments, MomentsFor(invocation));
  std::vector<StepMetrics> steps;
  if (!invocation.metrics.empty()) {
    TP_ASSIGN_OR_RETURN(steps, ReadMetrics(invocation.metrics));
  }
  TP_RETURN_IF_ERROR(WriteWhole(invocation.target, RenderReport(moments, steps)));
  const std::string and_steps =
      steps.empty() ? "" : ", " + std::to_string(steps.size()) + " steps of the trainer";
  return Shown{
      invocation.target + ": " + std::to_string(moments.size()) + " looks" + and_steps + "\n", ""};
}

}  // namespace tidepool::client
