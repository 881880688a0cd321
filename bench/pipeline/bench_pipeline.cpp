// bench_pipeline: steps of Mobius' pipeline on emulated machines (Feng et al., ASPLOS 2023,
// section 4). Copies are real and go over root complexes with limited rates; computing is a timed
// wait; the planner, the rCache and the stage plan are the trainer's.
//
// It measures whether the trainer's fetches and evictions keep links and GPUs as busy as the plan
// predicts, and the costs that the plan ignores. It leaves out operators, memserver and optimizer
// updates. Rows are in seconds and bytes of the emulated machine.
#include <sys/prctl.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "bench/harness/row.h"
#include "bench/pipeline/grid.h"
#include "bench/pipeline/paced_machine.h"
#include "bench/pipeline/paced_run.h"
#include "tests/trainer/advice/paper_models.h"

namespace tidepool::bench {
namespace {

constexpr double kOfBound = 1.15, kOfPlan = 1.1, kSharedTimes = 2, kSharedBytes = 2.5;
constexpr const char* kHelp =
    "bench_pipeline [--json FILE] [--model NAME] [--steps N]\n"
    "Emulates pipelines of Mobius' models (3b, 8b, 15b, 51b; default: all) on Mobius' machines, N "
    "steps a point (default 3), behind one\n"
    "that does not count. Two to three minutes, most of which it sleeps; Ctrl-C ends it.\n"
    "Other work on the CPUs makes steps longer.\n";

std::string NameOf(const Topology& topology) {
  std::string name;
  for (const uint32_t gpus : topology) name += (name.empty() ? "" : "+") + std::to_string(gpus);
  return name;
}

// The smallest ratio of one kind over all points, and its point.
struct Worst {
  std::optional<double> ratio;
  std::string point;

  void Note(double other, const std::string& at) {
    if (ratio && *ratio <= other) return;
    ratio = other;
    point = at;
  }
};

// One model on one machine.
struct Point {
  std::string name;
  PacedMachine machine;
  PacedPlan plan;
  double times = 1, bytes = 1;  // divisors of times and bytes
  int64_t planned_in_ns = 0;    // duration of planning
};

class Grid {
 public:
  Grid(RowPrinter* printer, uint32_t steps, Clock* clock)
      : printer_(printer), steps_(steps), clock_(clock) {}

  // Measures all points of one model.
  void Measure(uint32_t model) {
    for (const Topology& topology : kTopologies) {
      const Point point = PointOf(model, topology);
      const PacedResult cross = Pipeline(point);
      if (topology.size() > 1) Sequential(point, cross);
      if (topology == kSharedTopology) Shared(point, cross);
    }

    if (std::find(kMappingModels.begin(), kMappingModels.end(), model) != kMappingModels.end()) {
      const Point point = PointOf(model, kMappingTopology);
      Sequential(point, Pipeline(point));
    }
    if (model == kScalingModel) Scaling();
    if (model == kVerticalModel) Vertical();
  }

  void Summary() {
    Target("step, worst point", worst_bound_, "1.15 x max(computing, copies) + fill", 1);
    Target("step beside its plan, worst point", worst_plan_, "within 10 % of the plan", 1);
    Target("ZeRO-3 beside the pipeline, worst point", worst_shared_, "the pipeline's step",
           kSharedTimes);
    Target("ZeRO-3's bytes of a root complex, worst point", worst_bytes_, "the pipeline's bytes",
           kSharedBytes);
    Target("vertical order: weights, at most twice a step", worst_vertical_, "bytes fetched", 1);
  }

 private:
  Point PointOf(uint32_t model, const Topology& topology, uint32_t batches = 0) {
    trainer::PipelineQuestion question = QuestionOf(trainer::kPaperModels[model], topology);
    if (batches > 0) question.micro_batches = batches;

    Point point;
    point.name = std::string(trainer::kPaperModels[model].name) + " on " + NameOf(topology);
    point.machine = MachineOf(question, kScales[model]);
    point.times = static_cast<double>(kScales[model].times);
    point.bytes = static_cast<double>(kScales[model].bytes);
    const int64_t begin_ns = clock_->NowNs();
    point.plan = PlanOf(point.machine);
    point.planned_in_ns = clock_->NowNs() - begin_ns;
    return point;
  }

  void Add(const std::string& name, double value, const char* unit, const std::string& against = "",
           std::optional<double> ratio = std::nullopt) {
    Row row;
    row.bench = "pipeline";
    row.row = name;
    row.value = value;
    row.unit = unit;
    row.against = against;
    row.ratio = ratio;
    printer_->Add(row);
  }
  void Target(const std::string& name, const Worst& worst, const char* against, double target) {
    if (!worst.ratio) return;  // no point was measured
    Row row;
    row.bench = "pipeline";
    row.row = name + ": " + worst.point;
    row.value = *worst.ratio;
    row.unit = "times";
    row.against = against;
    row.ratio = worst.ratio;
    row.target = target;
    printer_->Add(row);
  }

  static double Seconds(const Point& point, double ns) { return ns * point.times / 1e9; }

  PacedResult Pipeline(const Point& point) {
    const PacedResult cross =
        RunPipeline(point.machine, point.plan, point.plan.cross, steps_, clock_);
    const double bound_ns =
        kOfBound * std::max(cross.compute_ns, cross.link_ns) + FillNs(point.machine, point.plan);
    worst_bound_.Note(bound_ns / cross.step_ns, point.name);
    Add("step, " + point.name, Seconds(point, cross.step_ns), "s",
        "1.15 x max(computing, copies) + fill", bound_ns / cross.step_ns);

    const auto planned_ns = static_cast<double>(point.plan.cross_ns);
    const double off = std::max(planned_ns / cross.step_ns, cross.step_ns / planned_ns);
    worst_plan_.Note(kOfPlan / off, point.name);
    Add("planned step, " + point.name, Seconds(point, planned_ns), "s", "the step",
        cross.step_ns / planned_ns);
    Add("time to plan, " + point.name + ": stages " + std::to_string(point.plan.ends.size()),
        static_cast<double>(point.planned_in_ns) / 1e6, "ms");
    Shares(point.name, cross);
    return cross;
  }

  void Shares(const std::string& name, const PacedResult& result) {
    Add("copies that nothing hides, " + name, 100 * result.exposed, "% of the step");
    Add("bytes above 12 of 13.1 GB/s, " + name, 100 * result.fast, "%");
  }

  void Sequential(const Point& point, const PacedResult& cross) {
    const PacedResult sequential =
        RunPipeline(point.machine, point.plan, point.plan.sequential, steps_, clock_);
    Add("step with sequential mapping, " + point.name, Seconds(point, sequential.step_ns), "s",
        "cross mapping (the paper: 11.3 to 18.1 % shorter)", sequential.step_ns / cross.step_ns);
    Add("copies that nothing hides, sequential, " + point.name, 100 * sequential.exposed,
        "% of the step");
  }

  void Shared(const Point& point, const PacedResult& cross) {
    const PacedResult shared = RunShared(point.machine, steps_, clock_);
    const double times = shared.step_ns / cross.step_ns;
    worst_shared_.Note(times, point.name);
    Add("step of ZeRO-3, " + point.name, Seconds(point, shared.step_ns), "s", "the pipeline",
        times);

    const auto bytes = static_cast<double>(shared.bytes_of_complex_max);
    const double more = bytes / static_cast<double>(cross.bytes_of_complex_max);
    worst_bytes_.Note(more, point.name);
    Add("bytes of ZeRO-3, " + point.name, bytes * point.bytes / 1e9, "GB", "the pipeline", more);
    Shares("ZeRO-3, " + point.name, shared);
  }

  void Scaling() {
    double first = 0;  // micro-batches a second on 2 GPUs
    for (uint32_t gpus = 2; gpus <= kScalingGpusMax; ++gpus) {
      const Point point = PointOf(kScalingModel, {gpus - gpus / 2, gpus / 2});
      const PacedResult result =
          RunPipeline(point.machine, point.plan, point.plan.cross, steps_, clock_);
      const double rate = gpus / Seconds(point, result.step_ns);
      if (gpus == 2) first = rate / 2;
      Add("scaling, " + point.name, rate, "micro-batches/s", "as much a GPU as with 2",
          rate / (first * gpus));
    }
  }

  void Vertical() {
    const Point point = PointOf(kVerticalModel, {1}, kVerticalBatches);
    const PacedResult vertical =
        RunPipeline(point.machine, point.plan, point.plan.cross, steps_, clock_);
    const PacedResult ordinary = RunShared(point.machine, steps_, clock_);
    uint64_t weights = 0;
    for (const trainer::PipelineLayer& layer : point.machine.task.layers)
      weights += layer.weight_bytes;

    // Bytes to the GPU are weights and boundary tensors.
    const uint64_t tensors = TensorBytesUp(point);
    const auto fetched = static_cast<double>(vertical.bytes_up - tensors);
    worst_vertical_.Note(2 * static_cast<double>(weights) / fetched, point.name);
    Add("vertical order: weights fetched, " + point.name, fetched * point.bytes / 1e9, "GB",
        "one micro-batch after the other, " + std::to_string(kVerticalBatches) + " of them",
        static_cast<double>(ordinary.bytes_up) / fetched);
    Add("vertical order: step, " + point.name, Seconds(point, vertical.step_ns), "s",
        "one micro-batch after the other", ordinary.step_ns / vertical.step_ns);
  }

  // Bytes of boundary tensors to the GPU in a step. Each stage but the first reads its input in
  // forward, and the input and a gradient in backward; the last stage reads its input once.
  static uint64_t TensorBytesUp(const Point& point) {
    const uint64_t inner = point.plan.ends.size() - 1;  // tensors between stages
    if (inner == 0) return 0;
    return (inner + (inner - 1) + inner) * point.machine.task.micro_batches *
           point.machine.task.layers.front().output_bytes;
  }

  RowPrinter* const printer_;
  const uint32_t steps_;
  Clock* const clock_;
  Worst worst_bound_, worst_plan_, worst_shared_, worst_bytes_, worst_vertical_;
};

}  // namespace
}  // namespace tidepool::bench

int main(int argc, char** argv) {
  using namespace tidepool::bench;  // NOLINT: the program has nothing else
  RowPrinter printer(argc, argv, kHelp);
  const std::string model = printer.Word("--model", "all");
  const auto steps = static_cast<uint32_t>(printer.Number("--steps", 3));
  printer.NoMoreArguments();
  // All threads wake within microseconds of the end of a wait.
  prctl(PR_SET_TIMERSLACK, 1000UL);

  tidepool::SteadyClock clock;
  Grid grid(&printer, steps, &clock);
  bool known = false;
  for (uint32_t i = 0; i < kScales.size(); ++i) {
    if (model != "all" && model != tidepool::trainer::kPaperModels[i].name) continue;
    known = true;
    grid.Measure(i);
  }
  if (!known) Die("error[TP1001]: there is no model '" + model + "' (see --help)");
  grid.Summary();
  return printer.Finish();
}
