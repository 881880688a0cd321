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
      for (uint32_t batch = 0; batch < work_.micro_batches && GoesOn(); ++batch)
        Forward(stage, batch);
      TP_POINT("trainer.stage_forward_done");
    }

    for (uint32_t stage = work_.stages; stage-- > 0;) {
      for (uint32_t batch = 0; batch < work_.micro_batches && GoesOn(); ++batch)
        Backward(stage, batch);
      if (GoesOn() && work_.ended) work_.ended(stage);
      TP_POINT("trainer.stage_backward_done");
    }
    return std::move(result_);
  }

 private:
  bool GoesOn() const { return !work_.goes_on || work_.goes_on(); }
  void Begins(bool backward, uint32_t stage, uint32_t batch) const {
    if (work_.begins) work_.begins(backward, stage, batch);
  }

  void Forward(uint32_t stage, uint32_t batch) {
    const at::NoGradGuard no_gradients;
    Begins(/*backward=*/false, stage, batch);
    at::Tensor output = work_.stage(stage, batch, inputs_[stage][batch]);
    result_.boundary_bytes += output.nbytes();
    inputs_[stage + 1][batch] = std::move(output);
  }

  void Backward(uint32_t stage, uint32_t batch) {
    Begins(/*backward=*/true, stage, batch);
    at::Tensor input;
    if (stage > 0) {
      input = std::exchange(inputs_[stage][batch], at::Tensor()).detach();
      input.requires_grad_(true);
    }

    const at::Tensor output = work_.stage(stage, batch, input);
    if (stage + 1 == work_.stages) {
      result_.losses.push_back(output.detach());
      // After a failed forward the loss is made of zeros: there is nothing to differentiate.
      if (!GoesOn()) return;
      (output * work_.gradient_scale).backward();
    } else {
      torch::autograd::backward({output}, {std::exchange(gradients_[batch], at::Tensor())});
    }
    if (stage > 0) gradients_[batch] = input.grad();
  }

  const StagedWork& work_;
  std::vector<std::vector<at::Tensor>> inputs_;  // [stage][micro-batch]
  std::vector<at::Tensor> gradients_;            // of the input of the stage behind, by micro-batch
  StagedResult result_;
};

}  // namespace

StagedResult RunStagedStep(const StagedWork& work) {
  return Step(work).Run();
}

}  // namespace tidepool::trainer
