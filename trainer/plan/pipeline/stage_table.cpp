#include "trainer/plan/pipeline/stage_table.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace tidepool::trainer {
namespace {

// Sums and peaks of a run of layers, extended layer by layer.
struct RunOfLayers {
  Stage stage;
  uint64_t kept = 0, forward_work = 0, backward_work = 0;

  void Add(const PipelineLayer& layer, double bytes_per_ns) {
    stage.forward_ns += layer.forward_ns;
    stage.backward_ns += layer.backward_ns;
    stage.weight_bytes += layer.weight_bytes;
    stage.gradient_bytes += layer.gradient_bytes;
    stage.weight_ns += CopyNs(layer.weight_bytes, bytes_per_ns);

    kept += layer.kept_bytes;
    forward_work = std::max(forward_work, layer.forward_work_bytes);
    backward_work = std::max(backward_work, layer.backward_work_bytes);
  }
};

int64_t SpareNs(uint64_t needed, const PipelineTask& task) {
  if (needed > task.gpu_bytes) return 0;
  return static_cast<int64_t>(static_cast<double>(task.gpu_bytes - needed) / task.bytes_per_ns);
}

// Forward has two inputs and two outputs: one in use, one in flight. Backward has two saved inputs,
// two incoming and two outgoing gradients, and the gradient sums.
Stage Finished(const RunOfLayers& run, const PipelineTask& task) {
  Stage stage = run.stage;
  const uint64_t in = stage.input_bytes, out = stage.output_bytes;
  stage.forward_bytes = stage.weight_bytes + 2 * in + 2 * out + run.forward_work;
  stage.backward_bytes =
      stage.weight_bytes + stage.gradient_bytes + 4 * in + 2 * out + run.kept + run.backward_work;

  stage.input_ns = CopyNs(in, task.bytes_per_ns);
  stage.forward_spare_ns = SpareNs(stage.forward_bytes, task);
  stage.backward_spare_ns = SpareNs(stage.backward_bytes, task);
  stage.fits = std::max(stage.forward_bytes, stage.backward_bytes) <= task.gpu_bytes;
  return stage;
}

}  // namespace

int64_t CopyNs(uint64_t bytes, double bytes_per_ns) {
  return static_cast<int64_t>(std::ceil(static_cast<double>(bytes) / bytes_per_ns));
}

StageTable::StageTable(const PipelineTask& task) : task_(task) {
  TP_CHECK(!task.layers.empty() && task.gpus > 0 && task.micro_batches > 0 && task.bytes_per_ns > 0,
           "a pipeline has layers, GPUs, micro-batches and a rate");
  const uint32_t count = layers();
  stages_.resize(static_cast<size_t>(count) * count);
  bool every_layer_fits = true;

  for (uint32_t first = 0; first < count; ++first) {
    RunOfLayers run;
    run.stage.first = first;
    run.stage.input_bytes = first == 0 ? 0 : task.layers[first - 1].output_bytes;
    for (uint32_t last = first; last < count; ++last) {
      run.Add(task.layers[last], task.bytes_per_ns);
      run.stage.behind = last + 1;
      run.stage.output_bytes = last + 1 == count ? 0 : task.layers[last].output_bytes;

      const Stage& stage = stages_[static_cast<size_t>(first) * count + last] = Finished(run, task);
      if (stage.fits) layers_max_ = std::max(layers_max_, last + 1 - first);
      if (last == first && !stage.fits) every_layer_fits = false;
    }
  }
  if (!every_layer_fits) layers_max_ = 0;
}

const Stage& StageTable::At(uint32_t first, uint32_t behind) const {
  return stages_[static_cast<size_t>(first) * layers() + behind - 1];
}

std::vector<Stage> StageTable::StagesOf(std::span<const uint32_t> ends) const {
  std::vector<Stage> stages;
  uint32_t first = 0;
  for (const uint32_t behind : ends) {
    stages.push_back(At(first, behind));
    first = behind;
  }
  return stages;
}

uint32_t DifferentLayers(std::span<const PipelineLayer> layers) {
  std::vector<PipelineLayer> different;
  for (const PipelineLayer& layer : layers) {
    if (std::find(different.begin(), different.end(), layer) == different.end())
      different.push_back(layer);
  }
  return static_cast<uint32_t>(different.size());
}

}  // namespace tidepool::trainer
