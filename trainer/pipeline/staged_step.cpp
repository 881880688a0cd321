#include "trainer/pipeline/staged_step.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/point.h"

namespace tidepool::trainer {
namespace {

class Step {
 public:
  explicit Step(const StagedWork& work)
      : work_(work),
        inputs_(work.stages, std::vector<at::Tensor>(work.micro_batches)),
        gradients_(work.micro_batches) {}

  StagedResult Run() {
    for (uint32_t stage = 0; stage + 1 < work_.stages; ++stage) {
      if (!Owns(stage)) continue;
      for (uint32_t batch = 0; batch < work_.micro_batches && GoesOn(); ++batch)
        Forward(stage, batch);
      TP_POINT("trainer.stage_forward_done");
    }

    for (uint32_t stage = work_.stages; stage-- > 0;) {
      if (!Owns(stage)) continue;
      for (uint32_t batch = 0; batch < work_.micro_batches && GoesOn(); ++batch)
        Backward(stage, batch);
      if (GoesOn() && work_.ended) work_.ended(stage);
      TP_POINT("trainer.stage_backward_done");
    }
    return std::move(result_);
  }

  // The whole forward of one micro-batch.
  at::Tensor Evaluate() {
    const at::NoGradGuard no_gradients;
    at::Tensor loss;
    for (uint32_t stage = 0; stage < work_.stages && GoesOn(); ++stage) {
      if (!Owns(stage)) continue;
      Begins(/*backward=*/false, stage, 0);
      const at::Tensor input = TakeInput(stage, 0);
      if (!GoesOn()) break;

      at::Tensor output = work_.stage(stage, 0, input);
      stage + 1 == work_.stages ? void(loss = std::move(output)) : GiveOutput(stage, 0, output);
    }
    return loss;
  }

 private:
  bool Owns(uint32_t stage) const { return !work_.owns || work_.owns(stage); }
  bool GoesOn() const { return !work_.goes_on || work_.goes_on(); }
  void Begins(bool backward, uint32_t stage, uint32_t batch) const {
    if (work_.begins) work_.begins(backward, stage, batch);
  }

  // Returns a stage's input and keeps it; undefined for the first stage.
  at::Tensor TakeInput(uint32_t stage, uint32_t batch) {
    at::Tensor& input = inputs_[stage][batch];
    if (stage > 0 && !Owns(stage - 1)) input = work_.receive(/*backward=*/false, stage, batch);
    return input;
  }
  void GiveOutput(uint32_t stage, uint32_t batch, const at::Tensor& output) {
    result_.boundary_bytes += output.nbytes();
    if (Owns(stage + 1)) {
      inputs_[stage + 1][batch] = output;
    } else {
      work_.send(/*backward=*/false, stage, batch, output);
    }
  }

  void Forward(uint32_t stage, uint32_t batch) {
    const at::NoGradGuard no_gradients;
    Begins(/*backward=*/false, stage, batch);
    const at::Tensor input = TakeInput(stage, batch);
    if (GoesOn()) GiveOutput(stage, batch, work_.stage(stage, batch, input));
  }

  void Backward(uint32_t stage, uint32_t batch) {
    const bool last = stage + 1 == work_.stages;
    Begins(/*backward=*/true, stage, batch);
    if (!GoesOn()) return;
    if (last) TakeInput(stage, batch);
    // Received before the forward, so that the forward's memory does not wait for it.
    if (!last && !Owns(stage + 1))
      gradients_[batch] = work_.receive(/*backward=*/true, stage, batch);
    if (!GoesOn()) return;

    at::Tensor input;
    if (stage > 0) {
      input = std::exchange(inputs_[stage][batch], at::Tensor()).detach();
      input.requires_grad_(true);
    }
    const at::Tensor output = work_.stage(stage, batch, input);
    // After a failed forward the loss is zeros: do not differentiate.
    if (last) result_.losses.push_back(output.detach());
    if (last && !GoesOn()) return;
    last ? (output * work_.gradient_scale).backward()
         : torch::autograd::backward({output}, {std::exchange(gradients_[batch], at::Tensor())});

    if (work_.went_back) work_.went_back(stage, batch);
    if (stage == 0) return;
    gradients_[batch] = input.grad();
    if (Owns(stage - 1) || !GoesOn()) return;
    work_.send(/*backward=*/true, stage, batch, std::exchange(gradients_[batch], at::Tensor()));
  }

  const StagedWork& work_;
  std::vector<std::vector<at::Tensor>> inputs_;  // [stage][micro-batch]
  std::vector<at::Tensor> gradients_;            // of the next stage's input, by micro-batch
  StagedResult result_;
};

}  // namespace

StagedResult RunStagedStep(const StagedWork& work) {
  return Step(work).Run();
}

at::Tensor RunStagedForward(const StagedWork& work) {
  return Step(work).Evaluate();
}

}  // namespace tidepool::trainer
