// PipelineSchedule: the timeline of one step of Mobius' pipeline: each stage's work on each
// micro-batch, and each copy (Feng et al., ASPLOS 2023, section 3.1 and figure 4).
//
// Any thread; pure. Covers what trainer/plan/pipeline/stage_times.h leaves out: copies of GPUs
// under one root complex wait for each other, boundary tensors go through host memory (down, then
// up), saved inputs return for backward, and gradient sums leave.
// Rules:
//  1. A GPU computes its stages in order, each on all micro-batches in order: forward from the
//     first stage to the last, then backward from the last to the first (GPipe).
//  2. A stage begins when its GPU has no other stage and enough room for it; it computes when all
//     its weights are there. They leave after its last micro-batch; only those of the last stage
//     on each GPU stay for backward.
//  3. Weights of a GPU's next stage arrive layer by layer, from the time the stage before computes
//     its first micro-batch if there is room beside it, else after that stage has ended; in
//     backward the first micro-batch's saved input follows them.
//  4. A stage has at most two inputs and two outputs on the GPU: one in use, one in flight.
//  5. A root complex runs one copy at a time in each direction: the earliest stage first, then
//     the earliest micro-batch. Gradient sums wait for boundary tensors.
// So a step takes at least the time of TimesOf at the fastest complex's rate.
// Times are nanoseconds from the start of the step. It ends when the last gradient sum is in host
// memory; the optimizer's update is not included.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trainer/plan/pipeline/copy_links.h"
#include "trainer/plan/pipeline/gpu_topology.h"
#include "trainer/plan/pipeline/stage_table.h"

namespace tidepool::trainer {

// A stage computing one micro-batch.
struct ComputeSpan {
  uint32_t stage = 0, micro_batch = 0;
  bool backward = false;
  uint32_t gpu = 0;
  int64_t start_ns = 0, end_ns = 0;
};

// The kinds of copies.
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
  std::vector<ComputeSpan> computes;  // by start
  std::vector<Copy> copies;           // those of size > 0, in the order in which they could begin
  std::vector<CopySpan> spans;        // of `copies`, by end
  int64_t step_ns = 0;
  int64_t compute_end_ns = 0;
  uint64_t bytes_up = 0, bytes_down = 0;  // of all GPUs

  // Fraction of all GPUs' time until compute_end_ns in which they are idle.
  double BubbleShare(uint32_t gpus) const;
};

// Input of the scheduler.
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
