// RandomPipeline: small tasks of the pipeline's planner, in which every constraint binds now and
// then; the same for the same seed.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/random.h"
#include "trainer/plan/pipeline/stage_table.h"

namespace tidepool::trainer {

// Some layers, alike in one task of three. A GPU has room for the largest layer and for up to four
// times as much.
inline PipelineTask RandomPipeline(uint64_t seed, uint32_t layers_max) {
  SplitMix64 random(seed * 0x9E3779B97F4A7C15ULL + 1);
  const auto below = [&](uint64_t bound) { return random.Below(bound); };
  PipelineTask task;
  task.gpus = static_cast<uint32_t>(1 + below(4));
  task.micro_batches = static_cast<uint32_t>(1 + below(6));
  task.bytes_per_ns = 0.25 * static_cast<double>(1 + below(12));

  const bool alike = below(3) == 0;
  const uint64_t layers = 1 + below(layers_max), weights = 1 + below(400), sent = below(60);
  for (uint64_t i = 0; i < layers; ++i) {
    PipelineLayer layer;
    layer.forward_ns = static_cast<int64_t>(1 + below(100));
    layer.backward_ns = layer.forward_ns * static_cast<int64_t>(1 + below(3));
    layer.weight_bytes = 1 + below(weights);
    layer.gradient_bytes = layer.weight_bytes * (1 + below(2));
    layer.kept_bytes = below(40);
    layer.output_bytes = below(sent + 1);
    layer.forward_work_bytes = below(50);
    layer.backward_work_bytes = below(90);
    task.layers.push_back(alike && i > 0 ? task.layers.front() : layer);
  }

  // Room is measured where everything fits.
  task.gpu_bytes = 1'000'000'000;
  const StageTable whole(task);
  uint64_t largest = 0;
  for (uint32_t i = 0; i < whole.layers(); ++i) {
    const Stage& stage = whole.At(i, i + 1);
    largest = std::max({largest, stage.forward_bytes, stage.backward_bytes});
  }
  task.gpu_bytes = largest + below(3 * largest);
  return task;
}

}  // namespace tidepool::trainer
