// PipelineSchedule: when everything of one step of Mobius' pipeline happens: each stage's work on
// each micro-batch, and each copy (Feng et al., ASPLOS 2023, section 3.1 and figure 4).
//
// Any thread; pure. What trainer/plan/pipeline/stage_times.h leaves out is in it: copies of GPUs
// under one root complex wait for each other, boundary tensors go through host memory (down, then
// up), saved inputs come back for backward, and sums of gradients leave.
// Rules:
//  1. A GPU computes its stages in order, each on all micro-batches in order: forward from the
//     first stage to the last, then backward from the last to the first (GPipe).
//  2. A stage begins when its GPU has no other and there is room for all that it needs; it
//     computes when its weights are there, whole. They go when its last micro-batch is done, but
//     those of the last stage on each GPU stay for backward.
//  3. Weights of the next stage of a GPU come layer by layer as soon as the stage before computes
//     its first micro-batch, while there is room beside it, and otherwise when it has ended; in
//     backward the first micro-batch's saved input comes behind them.
//  4. Two inputs and two outputs of a stage are on the GPU at most: one in use, one on its way.
//  5. A root complex copies one thing at a time in each direction: what the earliest stage needs,
//     then the earliest micro-batch. Sums of gradients wait for boundary tensors.
// So a step takes no less than TimesOf says for the fastest complex's rate.
// Times are nanoseconds from the begin of the step. It ends when the last sum of gradients is in
// host memory; the optimizer's update is not in it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trainer/plan/pipeline/copy_links.h"
#include "trainer/plan/pipeline/gpu_topology.h"
#include "trainer/plan/pipeline/stage_table.h"

namespace tidepool::trainer {

// A stage at work on one micro-batch.
struct ComputeSpan {
  uint32_t stage = 0, micro_batch = 0;
  bool backward = false;
  uint32_t gpu = 0;
  int64_t start_ns = 0, end_ns = 0;
};

// What is copied.
enum class CopyKind : uint8_t {
  kWeights,  // up: one layer's
  kInput,    // up: a boundary tensor, in backward the gradient of the stage's output
  kSaved,    // up, backward: the stage's input in forward
  kOutput,   // down: a boundary tensor, in backward the gradient of the stage's input
  kSums,     // down, backward: one layer's gradients, summed over the micro-batches
};

// One transfer between a GPU and host memory.
struct Copy {
  CopyKind kind = CopyKind::kWeights;
  uint32_t stage = 0;
  uint32_t item = 0;  // the layer, or the micro-batch
  bool backward = false;
  uint32_t gpu = 0;
  uint64_t bytes = 0;

  bool up() const { return kind < CopyKind::kOutput; }
};

struct PipelineSchedule {
  std::vector<ComputeSpan> computes;  // in the order of their starts
  std::vector<Copy> copies;           // whose size is not 0, in the order in which they could begin
  std::vector<CopySpan> spans;        // of `copies`, in the order of their ends
  int64_t step_ns = 0;
  int64_t compute_end_ns = 0;
  uint64_t bytes_up = 0, bytes_down = 0;  // of all GPUs

  // Share of all GPUs' time until compute_end_ns in which they compute nothing.
  double BubbleShare(uint32_t gpus) const;
};

// What is scheduled.
struct ScheduleTask {
  std::vector<PipelineLayer> layers;
  std::vector<Stage> stages;
  GpuTopology topology;
  std::vector<uint32_t> order;  // of the mapping
  uint32_t micro_batches = 1;
  uint64_t gpu_bytes = 0;
};

// Requires stages that cover the layers and fit, and an order of all GPUs.
PipelineSchedule ScheduleOf(const ScheduleTask& task);

}  // namespace tidepool::trainer
