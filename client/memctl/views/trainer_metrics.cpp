#include "client/memctl/views/trainer_metrics.h"

#include <algorithm>
#include <fstream>

#include "base/units.h"
#include "client/memctl/views/charts.h"
#include "client/admin/view_fields.h"

namespace tidepool::client {
namespace {

double KeptRate(double fetches, uint64_t accesses) {
  return accesses == 0 ? 1 : std::clamp(1 - fetches / static_cast<double>(accesses), 0.0, 1.0);
}

std::string Percent(double share) {
  return Number(100 * share) + " %";
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
  std::string text = "<p>" + std::to_string(steps.size()) + " steps; of " +
                     std::to_string(all.accesses()) + " accesses " + share(all.hits) +
                     " found their chunk there and " + share(all.ahead) + " fetched ahead; " +
                     std::to_string(all.prefetches_late) + " prefetches in " +
                     std::to_string(late_steps) + " steps came late; " + FormatDuration(waited) +
                     " of " + FormatDuration(seconds) + " were waited";

  if (planned > 0) {
    text += "; fetched in " + std::to_string(planned) +
            " steps with a recorded order: " + FormatBytes(all.bytes_h2d) + ", by Belady's rule " +
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
          .Read("waited_s", &step.waited_seconds)
          .Read("hits", &step.hits)
          .Read("misses", &step.misses);
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

std::string RenderMetrics(const std::vector<StepMetrics>& steps) {
  if (steps.empty()) return "";
  std::vector<double> at;
  Curve kept{"accesses for which nothing was fetched", "#0969da", {}},
      best{"the most that the order allows (Belady)", "#2da44e", {}};
  Curve seconds{"seconds of a step, up to ", "#57606a", {}};
  double longest = 0;
  std::vector<Mark> late;

  for (const StepMetrics& step : steps) {
    at.push_back(static_cast<double>(step.step));
    kept.values.push_back(step.kept_rate());
    best.values.push_back(step.bytes_h2d_least == 0 ? step.kept_rate() : step.kept_rate_best());
    seconds.values.push_back(step.seconds);
    longest = std::max(longest, step.seconds);
    if (step.prefetches_late == 0) continue;
    late.push_back({.at = at.back(),
                    .value = step.seconds,
                    .title = "step " + std::to_string(step.step) + ": " +
                             std::to_string(step.prefetches_late) + " late prefetches"});
  }

  seconds.name += FormatDuration(longest) + "; red: steps with late prefetches";
  const std::string span =
      "step " + std::to_string(steps.front().step) + " to " + std::to_string(steps.back().step);
  return "<h2>The trainer's steps</h2>\n" + Sums(steps) +
         Chart({at, {best, kept}, 1, {}, span + ", 0 to 100 %"}) +
         Chart({at, {seconds}, longest, late, span});
}

}  // namespace tidepool::client
