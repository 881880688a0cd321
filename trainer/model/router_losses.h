// RouterLosses: the auxiliary losses of routers, which arise within blocks and belong to the loss
// of the model: their gradients are added where they arise, in the scale of the model's loss.
//
// The model's thread. A block may be computed twice (trainer/model/checkpoint.h) and its result has
// no place for a second loss; so each term hangs on the activations beside it: backward of these
// brings the term's gradient along, at the scale with which backward of the model's loss began.
// (Megatron-LM's MoEAuxLossAutoScaler does the same with a scale that the trainer sets.)
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/custom_class.h>

namespace tidepool::trainer {

class RouterLosses {
 public:
  // A pass begins whose loss will have the terms.
  void Begin() {
    values_.clear();
    counts_ = true;
  }
  // The forward pass has ended: what is computed again adds no value.
  void End() { counts_ = false; }

  // `x`, whose backward also brings the gradient of `term`, a scalar. Without gradients the term
  // counts for nothing.
  at::Tensor Attach(const at::Tensor& x, const at::Tensor& term);
  // The model's loss with the values of all terms since Begin. Its gradient sets their scale.
  at::Tensor AddTo(const at::Tensor& loss);

 private:
  struct Scale : torch::CustomClassHolder {
    at::Tensor value;  // scalar: d total / d loss
  };
  friend struct AttachTerm;
  friend struct KeepScale;

  c10::intrusive_ptr<Scale> scale_ = c10::make_intrusive<Scale>();
  std::vector<at::Tensor> values_;
  bool counts_ = false;
};

}  // namespace tidepool::trainer
