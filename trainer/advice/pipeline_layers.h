// PipelineLayers: a GPT as the pipeline planner sees it: one layer per block. The embeddings belong
// to the first layer, the last norm and the output head to the last; both hold the token embedding,
// which they share.
//
// Any thread; torch-free, pure. Times count floating-point operations at a given rate, without
// launches and kernels that do other work.
// Sources: Mobius (Feng et al., ASPLOS 2023), section 3.2, for the cost of a layer and for
// profiling equal layers once.
#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "trainer/model/gpt_shape.h"
#include "trainer/plan/pipeline/stage_table.h"

namespace tidepool::trainer {

// Bytes per micro-batch, measured on the meta device with models of one and two blocks.
struct BlockProfile {
  uint64_t boundary = 0;   // a block's input
  uint64_t kept = 0;       // kept by a block's forward for its backward
  uint64_t work = 0;       // peak of a block's forward and backward
  uint64_t head_work = 0;  // the same for loss and logits
};

// The model to run as a pipeline.
struct PipelineModel {
  GptShape shape;
  DType dtype = DType::kF32;
  uint64_t sequences = 1, tokens = 1;  // per micro-batch
  bool checkpointing = false;          // blocks keep only their input, and are recomputed
  uint32_t vocab_tiles = 1;            // more than 1: backward computes the logits once more
  BlockProfile profile;
  double flops_per_ns = 1;
};

// A stage keeps only its input from forward to backward, so backward recomputes its forward: three
// times forward's operations, or four with checkpointing.
std::vector<PipelineLayer> LayersOf(const PipelineModel& model);

}  // namespace tidepool::trainer
