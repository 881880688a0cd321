// PipelineLayers: a GPT as the planner of pipelines sees it: one layer a block. The embeddings
// belong to the first, the last norm and the output head to the last; the token embedding, which
// both read, is held by both.
//
// Any thread; torch-free, pure. Times are those of the operations at a rate that the caller knows:
// kernels that do anything else, and launches, are not in them.
// Sources: Mobius (Feng et al., ASPLOS 2023), section 3.2, for what a layer costs and that equal
// ones are profiled once.
#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "trainer/model/gpt_shape.h"
#include "trainer/plan/pipeline/stage_table.h"

namespace tidepool::trainer {

// Bytes for one micro-batch, found on the meta device from models of one and two blocks.
struct BlockProfile {
  uint64_t boundary = 0;   // a block's input
  uint64_t kept = 0;       // what forward keeps of a block for its backward
  uint64_t work = 0;       // the most that forward and backward of a block take
  uint64_t head_work = 0;  // likewise of loss and logits
};

// What is to run as a pipeline.
struct PipelineModel {
  GptShape shape;
  DType dtype = DType::kF32;
  uint64_t sequences = 1, tokens = 1;  // of a micro-batch
  bool checkpointing = false;          // blocks keep their input alone, and are computed once more
  BlockProfile profile;
  double flops_per_ns = 1;
};

// A stage keeps its input alone from forward to backward, so backward computes its forward again:
// three times forward's operations, and with checkpointing four.
std::vector<PipelineLayer> LayersOf(const PipelineModel& model);

}  // namespace tidepool::trainer
