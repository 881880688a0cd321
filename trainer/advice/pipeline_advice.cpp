#include "trainer/advice/pipeline_advice.h"
#include "base/text/plural.h"

#include <algorithm>
#include <utility>

namespace tidepool::trainer {
namespace {

// Usable share of a GPU's memory (Elixir v2, appendix A.1).
constexpr double kUsedShare = 0.95;

PipelineTask TaskOf(const PipelineQuestion& question) {
  PipelineTask task;
  task.layers = LayersOf(question.model);
  task.gpus = question.machine.topology.gpus();
  task.micro_batches = question.micro_batches;
  task.gpu_bytes =
      static_cast<uint64_t>(kUsedShare * static_cast<double>(question.machine.gpu_bytes));
  task.bytes_per_ns = question.machine.topology.RateAlone();
  return task;
}

PipelineWay Scheduled(const PipelineQuestion& question, const PipelineTask& task, PipelineWay way) {
  way.task.layers = task.layers;
  way.task.stages = StageTable(task).StagesOf(way.partition.ends);
  way.task.topology = question.machine.topology;
  way.task.micro_batches = task.micro_batches;
  way.task.gpu_bytes = task.gpu_bytes;

  const auto stages = static_cast<uint32_t>(way.task.stages.size());
  way.cross = CrossMapping(way.task.topology, stages);
  way.sequential = SequentialMapping(way.task.topology, stages);
  way.task.order = way.sequential.order;
  PipelineSchedule in_order = ScheduleOf(way.task);
  way.task.order = way.cross.order;
  way.schedule = ScheduleOf(way.task);

  way.cross_ns = way.schedule.step_ns;
  way.sequential_ns = in_order.step_ns;
  if (way.sequential_ns < way.cross_ns) {
    way.task.order = way.sequential.order;
    way.schedule = std::move(in_order);
  }
  return way;
}

// The optimal partition for one rate.
Result<PipelineWay> ByProgram(const PipelineQuestion& question, PipelineTask task, double rate,
                              const char* name) {
  task.bytes_per_ns = rate;
  PipelineWay way;
  way.name = name;
  way.bytes_per_ns = rate;
  TP_ASSIGN_OR_RETURN(way.partition, FindPartition(StageTable(task), {.stages = question.stages}));
  return Scheduled(question, task, std::move(way));
}

// The most activation memory of one GPU that computes all layers.
uint64_t ActivationsOf(const PipelineTask& task, const PipelineModel& model) {
  uint64_t kept = 0, work = 0;
  for (const PipelineLayer& layer : task.layers) {
    kept += model.checkpointing ? layer.output_bytes : layer.kept_bytes;
    work = std::max(work, layer.backward_work_bytes);
  }
  return kept + work;
}

// All weights go up twice per micro-batch of a rank, less what stays from one pass to the next;
// gradients go down once.
SharedWay SharedWayOf(const PipelineQuestion& question, const PipelineTask& task) {
  SharedWay way;
  const GpuTopology& topology = question.machine.topology;
  const int64_t passes = (int64_t{task.micro_batches} + task.gpus - 1) / task.gpus;
  const uint64_t weights = GptParameterCount(question.model.shape) * BytesOf(question.model.dtype);
  int64_t forward = 0, backward = 0;
  uint64_t largest = 0;
  for (const PipelineLayer& layer : task.layers) {
    forward += layer.forward_ns;
    // No stage is recomputed here.
    backward += layer.backward_ns - layer.forward_ns;
    largest = std::max(largest, layer.weight_bytes);
  }

  const uint64_t activations = ActivationsOf(task, question.model);
  way.fits = activations + 2 * largest <= task.gpu_bytes;
  if (!way.fits) return way;
  const uint64_t stays = std::min(weights, task.gpu_bytes - activations - 2 * largest);

  // All wait for the root complex with the lowest rate per GPU.
  const double rate = topology.RateShared();
  const int64_t first = CopyNs(weights, rate), again = CopyNs(weights - stays, rate);
  way.step_ns = std::max(forward, first) + (passes - 1) * std::max(forward, again) +
                passes * std::max({backward, again, first});
  way.bytes_up =
      task.gpus * (weights + (2 * static_cast<uint64_t>(passes) - 1) * (weights - stays));
  way.bytes_down = task.gpus * static_cast<uint64_t>(passes) * weights;
  return way;
}

Status FewStages(uint32_t stages, uint32_t gpus) {
  return Status(ErrorId::kUsageError, Counted(stages, "stage") + " for " + Counted(gpus, "GPU"))
      .Where("--pipeline " + std::to_string(stages))
      .Why("each GPU computes at least one stage")
      .Fix("give at least --pipeline " + std::to_string(gpus) + ", or auto");
}

}  // namespace

Result<PipelineAdvice> AdvisePipeline(PipelineQuestion question) {
  PipelineAdvice advice;
  question.model.flops_per_ns = question.machine.tflops * 1e3;
  const GpuTopology& topology = question.machine.topology;
  if (question.stages != 0 && question.stages < topology.gpus())
    return FewStages(question.stages, topology.gpus());
  advice.task = TaskOf(question);

  TP_ASSIGN_OR_RETURN(PipelineWay alone,
                      ByProgram(question, advice.task, topology.RateAlone(), "copies undisturbed"));
  advice.ways.push_back(std::move(alone));
  if (topology.RateShared() < topology.RateAlone()) {
    TP_ASSIGN_OR_RETURN(PipelineWay shared,
                        ByProgram(question, advice.task, topology.RateShared(), "copies shared"));
    advice.ways.push_back(std::move(shared));
  }

  if (question.stages == 0) {
    const StageTable table(advice.task);
    PipelineWay most, least;
    most.name = "as many layers as fit";
    least.name = "one layer a stage";
    TP_ASSIGN_OR_RETURN(most.partition, MaximumStages(table));
    TP_ASSIGN_OR_RETURN(least.partition, MinimumStages(table));
    advice.ways.push_back(Scheduled(question, advice.task, std::move(most)));
    advice.ways.push_back(Scheduled(question, advice.task, std::move(least)));
  }

  std::stable_sort(advice.ways.begin(), advice.ways.end(),
                   [](const PipelineWay& a, const PipelineWay& b) {
                     return a.schedule.step_ns < b.schedule.step_ns;
                   });
  advice.shared = SharedWayOf(question, advice.task);
  advice.question = std::move(question);
  return advice;
}

}  // namespace tidepool::trainer
