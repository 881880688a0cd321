// bench_plans: what planning costs for a model of 175 billion parameters, and `--plan auto` beside
// the presets on an emulated device: the trainer's rCache over links with a limited rate, computing
// as timed waits (bench/pipeline/rank_cache.h), one rank.
//
// Gradients leave in 16 bits through rooms beside the blocks. Operators, updates and copies between
// ranks are left out; tests/trainer/plan/plan_grid_test.cpp simulates those.
#include <sys/prctl.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "bench/harness/die.h"
#include "bench/harness/median.h"
#include "bench/harness/row.h"
#include "bench/plans/emulated_step.h"
#include "trainer/layout/chunk_traffic.h"
#include "trainer/profile/step_profile.h"

namespace tidepool::bench {
namespace {

constexpr const char* kHelp =
    "bench_plans [--json FILE] [--steps N]\n"
    "The profile and the chunk size of a model of 175 billion parameters; then --plan auto beside "
    "zero2, zero3, no fetching\n"
    "ahead and a fixed part on the device at 24 points of an emulated device, N steps each "
    "(default 5) behind one that does\n"
    "not count. About a minute, most of which it sleeps. Other work on the CPUs makes steps "
    "longer.\n";

constexpr double kProfileMs = 100, kChunksMs = 20, kOfBest = 0.97;

// The largest model of Elixir v2's claim: GPT-3's sizes.
trainer::GptShape LargeShape() {
  return {"gpt-175b", 50257, 2048, 96, 96, 12288};
}

Row RowOf(const std::string& name, double value, const char* unit) {
  Row row;
  row.bench = "plans";
  row.row = name;
  row.value = value;
  row.unit = unit;
  return row;
}

class Plans {
 public:
  Plans(RowPrinter* printer, uint32_t steps, Clock* clock)
      : printer_(printer), steps_(steps), clock_(clock) {}

  void Planning() {
    trainer::ProfileTask task;
    task.shape = LargeShape();
    task.dtype = DType::kBF16;
    task.tokens = task.shape.context;
    Timed("profile of " + task.shape.name, kProfileMs, [&] { OrDie(trainer::ProfileStep(task)); });

    const std::vector<trainer::ParameterNote> notes = trainer::GptParameters(task.shape);
    trainer::LayoutOptions options;
    options.dtype = task.dtype;
    trainer::ChunkLayout layout;
    Timed("chunk size by least waste, " + task.shape.name, kChunksMs,
          [&] { layout = OrDie(trainer::BuildLayout(notes, options)); });
    Timed("chunk size by traffic, " + task.shape.name, kChunksMs,
          [&] { trainer::ChunkBytesByTraffic(layout, 20 * kGiB); });
  }

  void Grid() {
    for (const EmulatedModel& model : kEmulatedModels) {
      for (const double computing : {0.3, 1.0, 3.0}) {
        for (const double room : {0.0, 0.3, 0.6, 1.0}) Point(model, computing, room);
      }
    }
    Target("auto, worst of " + std::to_string(points_) + " points: " + worst_at_, worst_,
           "the best preset that fits", kOfBest);
    Target("bytes of all plans", bytes_equal_ ? 1 : 0, "the plan's theory", 1);
  }

 private:
  // The median of five, behind the first, which is told apart.
  template <typename Work>
  void Timed(const std::string& name, double target_ms, const Work& work) {
    std::vector<double> ms;
    for (int i = 0; i < 6; ++i) {
      const int64_t begin_ns = clock_->NowNs();
      work();
      ms.push_back(static_cast<double>(clock_->NowNs() - begin_ns) / 1e6);
    }
    Add(name + ", the first time", ms.front(), "ms");
    ms.erase(ms.begin());

    const double median = Median(std::move(ms));
    Row row = RowOf(name, median, "ms");
    row.against = FormatFixed(target_ms, 0) + " ms";
    row.ratio = target_ms / median;
    row.target = 1;
    printer_->Add(row);
  }

  void Point(const EmulatedModel& model, double computing, double room) {
    const EmulatedPoint point(model, computing, room);
    const std::string name = std::string(model.name) + ", computing " + FormatFixed(computing, 1) +
                             " x copies, " + std::to_string(point.limit_blocks()) + " of " +
                             std::to_string(point.chunks()) + " blocks";
    double best = 0;
    for (const char* preset : {"zero2", "zero3"}) {
      if (const std::optional<EmulatedResult> found = point.Preset(preset, steps_, clock_)) {
        Step(std::string(preset) + ", " + name, *found);
        best = best == 0 ? found->step_ns : std::min(best, found->step_ns);
      }
    }

    const EmulatedResult chosen = point.Auto(steps_, clock_);
    const double ratio = best / chosen.step_ns;
    Step("auto, " + name, chosen, "the best preset that fits", ratio);
    if (points_++ == 0 || ratio < worst_) worst_ = ratio, worst_at_ = name;

    Against("no fetching ahead, " + name, point.WithoutPrefetch(steps_, clock_), chosen);
    Against("a fixed part resident, " + name, point.Static(steps_, clock_), chosen);
  }

  void Step(const std::string& name, const EmulatedResult& result, const std::string& against = "",
            std::optional<double> ratio = std::nullopt) {
    bytes_equal_ = bytes_equal_ && result.bytes_up == result.planned_up;
    Add(name, result.step_ns / 1e6, "ms", against, ratio);
  }
  void Against(const std::string& name, const EmulatedResult& result,
               const EmulatedResult& chosen) {
    Step(name, result, "auto", chosen.step_ns / result.step_ns);
  }

  void Add(const std::string& name, double value, const char* unit, const std::string& against = "",
           std::optional<double> ratio = std::nullopt) {
    Row row = RowOf(name, value, unit);
    row.against = against;
    row.ratio = ratio;
    printer_->Add(row);
  }
  void Target(const std::string& name, double ratio, const char* against, double target) {
    Row row = RowOf(name, ratio, "times");
    row.against = against;
    row.ratio = ratio;
    row.target = target;
    printer_->Add(row);
  }

  RowPrinter* const printer_;
  const uint32_t steps_;
  Clock* const clock_;
  uint64_t points_ = 0;
  double worst_ = 0;
  std::string worst_at_;
  bool bytes_equal_ = true;
};

}  // namespace
}  // namespace tidepool::bench

int main(int argc, char** argv) {
  using namespace tidepool::bench;  // NOLINT: the program has nothing else
  RowPrinter printer(argc, argv, kHelp);
  const auto steps = static_cast<uint32_t>(printer.Number("--steps", 5));
  printer.NoMoreArguments();
  // All threads wake within microseconds of the end of a wait.
  prctl(PR_SET_TIMERSLACK, 1000UL);

  tidepool::SteadyClock clock;
  Plans plans(&printer, steps, &clock);
  plans.Planning();
  plans.Grid();
  return printer.Finish();
}
