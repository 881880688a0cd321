// RunStagedStep: forward and backward of one training step on one rank, stage by stage: each stage
// for all micro-batches before the next one, so that its weights come once in forward and once in
// backward (the vertical order; GPipe's update: one, behind all of it).
//
// The thread that trains. LibTorch's exceptions pass. A stage keeps its inputs alone and computes
// its forward again in backward; the last one goes through forward and backward at once. Gradients
// of parameters come to LibTorch's hooks, micro-batch by micro-batch, in order.
// A rank of several goes through its own stages only; inputs and gradients that other ranks have
// made are received when they are needed.
// Bits: the operators and their inputs are those of one micro-batch after the other through the
// whole model, so a gradient of one micro-batch has the same bits, but where a parameter is used by
// several stages: each brings its part, to be added in the parameter's dtype.
// Sources: Mobius (Feng et al., ASPLOS 2023), section 3.1 and figure 4; GPipe (Huang et al., 2019).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tidepool::trainer {

// What is run.
struct StagedWork {
  uint32_t stages = 1, micro_batches = 1;
  double gradient_scale = 1;  // gradients are those of loss x this
  // One stage of one micro-batch. `input`: what the stage before it returned; undefined for the
  // first stage. The last one returns the loss, a scalar.
  std::function<at::Tensor(uint32_t stage, uint32_t micro_batch, const at::Tensor& input)> stage =
      nullptr;
  // Whether the stage is computed here; null: all are.
  std::function<bool(uint32_t stage)> owns = nullptr;
  // What another rank has sent of this micro-batch: a stage's input, or with `backward` the
  // gradient of its output. It may wait; undefined: the step has failed.
  std::function<at::Tensor(bool backward, uint32_t stage, uint32_t micro_batch)> receive = nullptr;
  // Takes what another rank needs: a stage's output, or with `backward` the gradient of its input.
  std::function<void(bool backward, uint32_t stage, uint32_t micro_batch, const at::Tensor& sent)>
      send = nullptr;
  // Called before forward, and before backward with the forward that it computes again; may be
  // null.
  std::function<void(bool backward, uint32_t stage, uint32_t micro_batch)> begins = nullptr;
  // Called behind the backward of a stage for one micro-batch; may be null.
  std::function<void(uint32_t stage, uint32_t micro_batch)> went_back = nullptr;
  // Called behind the backward of a stage for all micro-batches; may be null.
  std::function<void(uint32_t stage)> ended = nullptr;
  // False: the step has failed, and nothing more is computed; may be null.
  std::function<bool()> goes_on = nullptr;
};

// What came of it.
struct StagedResult {
  // The micro-batches' losses, in order, without a graph, where the last stage is computed.
  std::vector<at::Tensor> losses;
  uint64_t boundary_bytes = 0;  // of outputs of stages that others take as input, here or elsewhere
};

// Forward and backward of all micro-batches.
StagedResult RunStagedStep(const StagedWork& work);
// Forward of one micro-batch without gradients. Returns the loss; undefined where the last stage is
// not computed here, or the step has failed.
at::Tensor RunStagedForward(const StagedWork& work);

}  // namespace tidepool::trainer
