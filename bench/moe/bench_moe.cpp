// bench_moe: steps of a model with experts, of which those without tokens are neither fetched nor
// hand in a gradient, beside steps that fetch all of them. Copies are real and go over a link of
// 0.5 GB/s each way; computing is a timed wait; rCache, plan and prefetching are the trainer's.
//
// It measures how much of the time that the bytes predict is really saved. It leaves out operators,
// memserver and optimizer updates.
#include <sys/prctl.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>

#include "base/clock.h"
#include "bench/harness/row.h"
#include "bench/moe/routed_step.h"
#include "bench/moe/traces.h"

namespace tidepool::bench {
namespace {

constexpr double kBytesPerNs = 0.5;
constexpr uint64_t kExpertBytes = 512 << 10;
constexpr double kMoreBytes = 1.05, kOfGain = 0.9;
constexpr const char* kHelp =
    "bench_moe [--json FILE] [--trace NAME] [--steps N]\n"
    "Emulates steps of a model of six blocks with 16 experts each, for the routings of "
    "bench/moe/traces.h (four, few, skewed, all;\n"
    "default: each), N steps a point (default 3), behind two that do not count. Half a minute, "
    "most "
    "of which it sleeps; Ctrl-C ends it.\n"
    "Other work on the CPUs makes steps longer.\n";

struct Point {
  const RoutingTrace* trace = nullptr;
  uint64_t blocks = 0;
  double computing = 0;

  std::string Name() const {
    return std::string(trace->name) + ", " + std::to_string(blocks) + " blocks, computing " +
           std::to_string(static_cast<int>(computing * 100)) + " %";
  }
};

class Points {
 public:
  Points(RowPrinter* printer, uint32_t steps, Clock* clock)
      : printer_(printer), steps_(steps), clock_(clock) {}

  void Measure(const Point& point) {
    const auto theory = static_cast<double>(FetchedTheory(*point.trace, kExpertBytes, false));
    RoutedSetup setup{.trace = point.trace,
                      .blocks = point.blocks,
                      .bytes_per_ns = kBytesPerNs,
                      .chunk_bytes = kExpertBytes,
                      .steps = steps_};
    setup.compute_ns = static_cast<uint64_t>(point.computing * theory / kBytesPerNs);
    const RoutedResult routed = RunRouted(setup, clock_);
    setup.leaves_out = false;
    const RoutedResult all = RunRouted(setup, clock_);

    const auto fetched = static_cast<double>(routed.fetched_bytes);
    Add("fetched, " + point.Name(), fetched / 1e6, "MB",
        {"1.05 x what has tokens, for forward and backward", kMoreBytes * theory / fetched, 1});
    Add("handed in, " + point.Name(), static_cast<double>(routed.handed_in_bytes) / 1e6, "MB",
        {"all gradients", Times(all.handed_in_bytes, routed.handed_in_bytes)});

    const double gain = all.step_ns / routed.step_ns,
                 predicted = BoundNs(all, setup) / BoundNs(routed, setup);
    Add("step, " + point.Name(), routed.step_ns / 1e6, "ms", {"fetching all experts", gain});
    // Where everything has tokens there is nothing to gain, and nothing may be lost.
    Add("gain, " + point.Name(), gain, "times",
        {"what bytes and rate predict", gain / predicted, kOfGain});
  }

 private:
  static double Times(uint64_t more, uint64_t less) {
    return static_cast<double>(more) / static_cast<double>(less);
  }
  // The larger of the computing and of the busier direction's copies.
  static double BoundNs(const RoutedResult& result, const RoutedSetup& setup) {
    const uint64_t bytes = std::max(result.fetched_bytes, result.handed_in_bytes);
    return std::max(static_cast<double>(setup.compute_ns),
                    static_cast<double>(bytes) / setup.bytes_per_ns);
  }
  // What a value is held against.
  struct Against {
    const char* what;
    double ratio;
    std::optional<double> target = std::nullopt;
  };
  void Add(const std::string& name, double value, const char* unit, const Against& against) {
    Row row;
    row.bench = "moe";
    row.row = name;
    row.value = value;
    row.unit = unit;
    row.against = against.what;
    row.ratio = against.ratio;
    row.target = against.target;
    printer_->Add(row);
  }

  RowPrinter* const printer_;
  const uint32_t steps_;
  Clock* const clock_;
};

}  // namespace
}  // namespace tidepool::bench

int main(int argc, char** argv) {
  using namespace tidepool::bench;  // NOLINT: the program has nothing else
  RowPrinter printer(argc, argv, kHelp);

  const std::string chosen = printer.Word("--trace", "each");
  const auto steps = static_cast<uint32_t>(printer.Number("--steps", 3));
  printer.NoMoreArguments();

  // The thread wakes within microseconds of the end of a wait.
  prctl(PR_SET_TIMERSLACK, 1000UL);

  tidepool::SteadyClock clock;
  bool known = false;
  Points points(&printer, steps, &clock);

  for (const RoutingTrace& trace : kTraces) {
    if (chosen != "each" && chosen != trace.name) continue;
    known = true;
    for (const uint64_t blocks : kMoeRooms) {
      for (const double computing : kMoeComputing) points.Measure({&trace, blocks, computing});
    }
  }
  if (!known) Die("error[TP1001]: there is no trace '" + chosen + "' (see --help)");
  return printer.Finish();
}
