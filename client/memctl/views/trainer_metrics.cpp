#include "client/memctl/views/trainer_metrics.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

#include "base/picture/chart.h"
#include "base/text/plural.h"
#include "base/units.h"
#include "client/admin/view_fields.h"

namespace tidepool::client {
namespace {

double KeptRate(double fetches, uint64_t accesses) {
  return accesses == 0 ? 1 : std::clamp(1 - fetches / static_cast<double>(accesses), 0.0, 1.0);
}

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

std::string Percent(double share) {
  return FormatFixed(100 * share, 1) + " %";
}

// The totals of all steps, in words.
std::string Sums(const std::vector<StepMetrics>& steps) {
  StepMetrics all;
  uint64_t planned = 0, late_steps = 0;
  double seconds = 0, waited = 0;
  for (const StepMetrics& step : steps) {
    all.hits += step.hits;
    all.ahead += step.ahead;
    all.misses += step.misses;
    all.prefetches_late += step.prefetches_late;
    late_steps += step.prefetches_late > 0 ? 1 : 0;
    seconds += step.seconds;
    waited += step.waited_seconds;

    if (step.bytes_h2d_least == 0) continue;
    ++planned;
    all.bytes_h2d += step.bytes_h2d;
    all.bytes_h2d_least += step.bytes_h2d_least;
  }

  const auto share = [&all](uint64_t some) {
    return Percent(static_cast<double>(some) / static_cast<double>(all.accesses()));
  };
  std::string text = "<p>" + Counted(steps.size(), "step") + "; of " +
                     std::to_string(all.accesses()) + " accesses " + share(all.hits) +
                     " found their chunk there and " + share(all.ahead) + " fetched ahead; " +
                     Counted(all.prefetches_late, "prefetch") + " in " +
                     Counted(late_steps, "step") + " came late; " + FormatDuration(waited) +
                     " of " + FormatDuration(seconds) + " were waited";

  if (planned > 0) {
    text += "; fetched in " + Counted(planned, "step") +
            " with a recorded order: " + FormatBytes(all.bytes_h2d) + ", by Belady's rule " +
            FormatBytes(all.bytes_h2d_least);
  }
  return text + "</p>\n";
}

}  // namespace

double StepMetrics::kept_rate() const {
  return KeptRate(static_cast<double>(misses + prefetches), accesses());
}

double StepMetrics::kept_rate_best() const {
  if (bytes_h2d_least == 0 || bytes_h2d == 0) return 0;
  const double fewer = static_cast<double>(bytes_h2d_least) / static_cast<double>(bytes_h2d);
  return KeptRate(static_cast<double>(misses + prefetches) * fewer, accesses());
}

Result<std::vector<StepMetrics>> ReadMetrics(const std::string& path) {
  std::ifstream file(path);
  if (!file)
    return Status(ErrorId::kFileUnreadable, "the trainer's metrics cannot be read").Where(path);
  std::vector<StepMetrics> steps;
  // A line without its end is still being written.
  for (std::string line; std::getline(file, line) && !file.eof();) {
    StepMetrics step;
    bool told = true;
    const Status read = ReadFields(line, [&](Fields& fields) {
      fields.Read("step", &step.step);
      told = fields.Has("hits");
      if (!told) return;

      fields.Read("seconds", &step.seconds)
          .Read("loss", &step.loss)
          .Read("tokens_per_s", &step.tokens_per_second)
          .Read("waited_s", &step.waited_seconds)
          .Read("hits", &step.hits)
          .Read("misses", &step.misses);
      double held_out = kNone;
      if (fields.Has("val_loss")) fields.Read("val_loss", &held_out);
      if (std::isfinite(held_out)) step.held_out_loss = held_out;

      if (fields.Has("ahead")) fields.Read("ahead", &step.ahead);

      fields.Read("prefetches", &step.prefetches).Read("prefetches_late", &step.prefetches_late);
      fields.Read("bytes_h2d", &step.bytes_h2d).Read("bytes_h2d_theory", &step.bytes_h2d_least);
    });

    if (!read.ok()) {
      return Status(read.id(), "the file is none of a trainer's metrics: " + read.what())
          .Where(path)
          .Fix("give DIR/metrics.jsonl of trainer run --out DIR");
    }
    if (told && step.accesses() > 0) steps.push_back(step);
  }
  return steps;
}

namespace {

// A quantile of the seconds of the last 128 steps before `end`, as the server computes it.
double Quantile(const std::vector<StepMetrics>& steps, size_t end, double share) {
  std::vector<double> last;
  for (size_t i = end < 128 ? 0 : end - 128; i < end; ++i) last.push_back(steps[i].seconds);
  const auto at =
      last.begin() + static_cast<ptrdiff_t>(share * static_cast<double>(last.size() - 1) + 0.5);
  std::nth_element(last.begin(), at, last.end());
  return *at;
}

ChartOf StepsChart(const std::vector<StepMetrics>& steps, const std::string& title) {
  ChartOf chart{.title = title, .x_name = "the steps"};
  for (const StepMetrics& step : steps) chart.at.push_back(static_cast<double>(step.step));
  chart.x = ExactScale(chart.at.front(), std::max(chart.at.back(), chart.at.front() + 1),
                       AxisUnit::kCount);
  return chart;
}

// Sets a y axis with round ends, from the smallest value if `from_least`, else from 0.
void ScaleOver(ChartOf* chart, bool from_least, AxisUnit unit) {
  double least = 0, most = 0;
  bool first = true;

  for (const Curve& curve : chart->curves) {
    for (const double value : curve.values) {
      if (!std::isfinite(value)) continue;
      least = first ? value : std::min(least, value);
      most = first ? value : std::max(most, value);
      first = false;
    }
  }
  chart->y = RoundScale(from_least ? least : 0, most, unit);
}

std::string LossChart(const std::vector<StepMetrics>& steps) {
  ChartOf chart = StepsChart(steps, "Loss");
  Curve held_out{"held out", "due", {}};
  chart.curves = {{"training", "accent", {}}};
  for (const StepMetrics& step : steps) {
    chart.curves[0].values.push_back(step.loss);
    held_out.values.push_back(kNone);

    if (!step.held_out_loss) continue;
    held_out.values.back() = *step.held_out_loss;
    chart.marks.push_back({chart.at[held_out.values.size() - 1], *step.held_out_loss,
                           "step " + std::to_string(step.step) + ": held out " +
                               FormatFixed(*step.held_out_loss, 4)});
  }

  chart.curves.push_back(std::move(held_out));
  ScaleOver(&chart, true, AxisUnit::kPlain);
  if (chart.marks.empty()) chart.curves.pop_back();
  return Chart(chart);
}

std::string SpeedChart(const std::vector<StepMetrics>& steps) {
  ChartOf chart = StepsChart(steps, "Tokens a second");
  chart.curves = {{"tokens a second", "held", {}}};
  for (const StepMetrics& step : steps) chart.curves[0].values.push_back(step.tokens_per_second);
  ScaleOver(&chart, false, AxisUnit::kCount);
  return Chart(chart);
}

std::string TimeChart(const std::vector<StepMetrics>& steps) {
  ChartOf chart = StepsChart(steps, "Time of a step; dots: late prefetches");
  chart.curves = {{"the step", "accent", {}},
                  {"p50 of the last 128", "held", {}},
                  {"p99 of the last 128", "updating", {}}};
  for (size_t i = 0; i < steps.size(); ++i) {
    const StepMetrics& step = steps[i];
    chart.curves[0].values.push_back(step.seconds);
    chart.curves[1].values.push_back(Quantile(steps, i + 1, 0.5));
    chart.curves[2].values.push_back(Quantile(steps, i + 1, 0.99));

    if (step.prefetches_late == 0) continue;
    chart.marks.push_back({chart.at[i], step.seconds,
                           "step " + std::to_string(step.step) + ": " +
                               Counted(step.prefetches_late, "late prefetch")});
  }
  ScaleOver(&chart, false, AxisUnit::kSeconds);
  return Chart(chart);
}

std::string KeptChart(const std::vector<StepMetrics>& steps) {
  ChartOf chart = StepsChart(steps, "Accesses for which nothing was fetched");
  chart.y = RoundScale(0, 1, AxisUnit::kShare);
  chart.curves = {{"the most that the order allows (Belady)", "held", {}},
                  {"this run", "accent", {}}};
  for (const StepMetrics& step : steps) {
    chart.curves[0].values.push_back(step.bytes_h2d_least == 0 ? step.kept_rate()
                                                               : step.kept_rate_best());
    chart.curves[1].values.push_back(step.kept_rate());
  }
  return Chart(chart);
}

}  // namespace

std::string RenderMetrics(const std::vector<StepMetrics>& steps) {
  if (steps.empty()) return "";
  return "<section class=\"card\"><h2>The trainer's steps</h2>\n" + Sums(steps) +
         "<div class=\"charts\">" + LossChart(steps) + SpeedChart(steps) + TimeChart(steps) +
         KeptChart(steps) + "</div></section>\n";
}

}  // namespace tidepool::client
