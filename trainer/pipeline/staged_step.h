// RunStagedStep: forward and backward of one training step on one rank, stage by stage: each stage
// runs all micro-batches before the next stage begins, so its weights are fetched once for forward
// and once for backward (vertical order). One update follows at the end, as in GPipe.
//
// The training thread. LibTorch's exceptions propagate. A stage keeps only its inputs and
// recomputes its forward in backward; the last stage runs forward and backward at once. Parameter
// gradients reach LibTorch's hooks micro-batch by micro-batch, in order.
// In a run of several ranks each rank computes its own stages; inputs and gradients from other
// ranks are received when they are needed.
// Bits: the operators and their inputs are those of running the micro-batches one by one through
// the whole model, so each micro-batch's gradient has the same bits, except where several stages
// use a parameter: their parts are added in the parameter's dtype.
// Sources: Mobius (Feng et al., ASPLOS 2023), section 3.1 and figure 4; GPipe (Huang et al., 2019).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tidepool::trainer {

// The step to run, as callbacks.
struct StagedWork {
  uint32_t stages = 1, micro_batches = 1;
  double gradient_scale = 1;  // gradients are of loss x gradient_scale
  // Computes one stage for one micro-batch. `input`: the previous stage's output; undefined for the
  // first stage. The last stage returns the loss, a scalar.
  std::function<at::Tensor(uint32_t stage, uint32_t micro_batch, const at::Tensor& input)> stage =
      nullptr;
  // Whether the stage is computed here; null: all are.
  std::function<bool(uint32_t stage)> owns = nullptr;
  // Receives a tensor of this micro-batch from another rank: a stage's input or, with `backward`,
  // the gradient of its output. May block. Undefined: the step has failed.
  std::function<at::Tensor(bool backward, uint32_t stage, uint32_t micro_batch)> receive = nullptr;
  // Sends a stage's output to another rank or, with `backward`, the gradient of its input.
  std::function<void(bool backward, uint32_t stage, uint32_t micro_batch, const at::Tensor& sent)>
      send = nullptr;
  // Called before each forward, and before each backward with its recomputed forward; may be null.
  std::function<void(bool backward, uint32_t stage, uint32_t micro_batch)> begins = nullptr;
  // Called after a stage's backward for one micro-batch; may be null.
  std::function<void(uint32_t stage, uint32_t micro_batch)> went_back = nullptr;
  // Called after a stage's backward for all micro-batches; may be null.
  std::function<void(uint32_t stage)> ended = nullptr;
  // False: the step has failed; nothing more is computed. May be null.
  std::function<bool()> goes_on = nullptr;
};

// The result of a step.
struct StagedResult {
  // The losses by micro-batch, detached, where this rank computes the last stage.
  std::vector<at::Tensor> losses;
  uint64_t boundary_bytes = 0;  // of stage outputs that are inputs of a stage, on any rank
};

// Forward and backward of all micro-batches.
StagedResult RunStagedStep(const StagedWork& work);
// Forward of one micro-batch without gradients. Returns the loss; undefined if the last stage is
// not computed here or the step has failed.
at::Tensor RunStagedForward(const StagedWork& work);

}  // namespace tidepool::trainer
