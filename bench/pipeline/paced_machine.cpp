#include "bench/pipeline/paced_machine.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/units.h"
#include "bench/harness/die.h"
#include "trainer/layout/build_layout.h"
#include "trainer/plan/pipeline/stage_mapping.h"
#include "trainer/plan/pipeline/stage_partition.h"

namespace tidepool::bench {
namespace {

using trainer::PipelineLayer;

constexpr double kUsedShare = 0.95;  // of a GPU's memory, as in trainer/advice/pipeline_advice.cpp
constexpr uint64_t kChunksOfABlock = 4;

uint64_t Nearest(uint64_t value, uint64_t multiple) {
  return std::max<uint64_t>(1, (value + multiple / 2) / multiple) * multiple;
}

PipelineLayer Scaled(PipelineLayer layer, uint64_t chunk_bytes, const Scale& scale) {
  layer.forward_ns /= static_cast<int64_t>(scale.times);
  layer.backward_ns /= static_cast<int64_t>(scale.times);
  layer.weight_bytes = Nearest(layer.weight_bytes / scale.bytes, chunk_bytes);
  layer.gradient_bytes = 2 * layer.weight_bytes;
  layer.kept_bytes /= scale.bytes;
  layer.output_bytes = layer.output_bytes / scale.bytes;
  layer.forward_work_bytes /= scale.bytes;
  layer.backward_work_bytes /= scale.bytes;
  return layer;
}

// Replaces `best` if this partition has a shorter step in the cross mapping.
void Consider(const PacedMachine& machine, const Result<trainer::Partition>& partition,
              PacedPlan* best) {
  if (!partition.ok()) return;
  trainer::ScheduleTask task{
      .layers = machine.task.layers,
      .stages = trainer::StageTable(machine.task).StagesOf(partition.value().ends),
      .topology = machine.topology,
      .order = {},
      .micro_batches = machine.task.micro_batches,
      .gpu_bytes = machine.task.gpu_bytes};

  const auto stages = static_cast<uint32_t>(task.stages.size());
  PacedPlan plan;
  plan.ends = partition.value().ends;
  plan.cross = task.order = trainer::CrossMapping(machine.topology, stages).order;
  plan.cross_ns = trainer::ScheduleOf(task).step_ns;
  plan.sequential = task.order = trainer::SequentialMapping(machine.topology, stages).order;
  plan.sequential_ns = trainer::ScheduleOf(task).step_ns;
  if (best->ends.empty() || plan.cross_ns < best->cross_ns) *best = std::move(plan);
}

}  // namespace

std::vector<uint32_t> PacedMachine::complexes() const {
  std::vector<uint32_t> complexes;
  for (uint32_t gpu = 0; gpu < topology.gpus(); ++gpu) complexes.push_back(topology.ComplexOf(gpu));
  return complexes;
}

std::vector<double> PacedMachine::rates() const {
  std::vector<double> rates;
  for (const trainer::RootComplex& complex : topology.complexes)
    rates.push_back(complex.bytes_per_ns);
  return rates;
}

PacedMachine MachineOf(const trainer::PipelineQuestion& question, const Scale& scale) {
  trainer::PipelineModel model = question.model;
  model.flops_per_ns = question.machine.tflops * 1e3;
  PacedMachine machine;
  machine.topology = question.machine.topology;
  for (trainer::RootComplex& complex : machine.topology.complexes)
    complex.bytes_per_ns *= static_cast<double>(scale.times) / static_cast<double>(scale.bytes);

  std::vector<PipelineLayer> layers = trainer::LayersOf(model);
  // A middle layer has kChunksOfABlock chunks.
  machine.chunk_bytes =
      Nearest(layers[layers.size() / 2].weight_bytes / scale.bytes / kChunksOfABlock, kPageBytes);
  for (const PipelineLayer& layer : layers)
    machine.task.layers.push_back(Scaled(layer, machine.chunk_bytes, scale));

  machine.task.gpus = machine.topology.gpus();
  machine.task.micro_batches = question.micro_batches;
  machine.task.gpu_bytes =
      static_cast<uint64_t>(kUsedShare * static_cast<double>(question.machine.gpu_bytes)) /
      scale.bytes;
  machine.task.bytes_per_ns = machine.topology.RateAlone();
  return machine;
}

PacedPlan PlanOf(const PacedMachine& machine) {
  PacedPlan best;
  for (const double rate : {machine.topology.RateAlone(), machine.topology.RateShared()}) {
    trainer::PipelineTask task = machine.task;
    task.bytes_per_ns = rate;
    Consider(machine, trainer::FindPartition(trainer::StageTable(task), {}), &best);
  }

  const trainer::StageTable table(machine.task);
  Consider(machine, trainer::MaximumStages(table), &best);
  Consider(machine, trainer::MinimumStages(table), &best);
  if (best.ends.empty()) Die("a layer of the grid does not fit");
  return best;
}

trainer::ChunkLayout LayoutOf(const PacedMachine& machine, const std::vector<uint32_t>& group_of,
                              const std::vector<std::vector<Rank>>& groups, uint32_t world) {
  std::vector<trainer::ParameterNote> notes;
  for (uint32_t layer = 0; layer < machine.task.layers.size(); ++layer) {
    for (uint32_t i = 0; i < machine.ChunksOf(layer); ++i) {
      trainer::ParameterNote note;
      note.name = std::to_string(layer) + "." + std::to_string(i);
      note.dims = {machine.chunk_bytes / BytesOf(DType::kBF16)};
      note.data_group = group_of[layer];
      notes.push_back(std::move(note));
    }
  }

  trainer::LayoutOptions options;
  options.dtype = DType::kBF16;
  options.world = world;
  options.data_groups = groups;
  options.chunk_bytes = machine.chunk_bytes;
  options.fuses_small = false;
  return OrDie(trainer::BuildLayout(notes, options));
}

std::vector<std::vector<ChunkId>> ChunkIdsOf(const trainer::ChunkLayout& layout,
                                             const PacedMachine& machine) {
  std::vector<std::vector<ChunkId>> chunks;
  uint32_t note = 0;
  for (uint32_t layer = 0; layer < machine.task.layers.size(); ++layer) {
    chunks.emplace_back();
    for (uint32_t i = 0; i < machine.ChunksOf(layer); ++i)
      chunks.back().push_back(layout.parameters[layout.of_note[note++]].chunk);
    std::sort(chunks.back().begin(), chunks.back().end());
  }
  return chunks;
}

}  // namespace tidepool::bench
