// RouterLosses: auxiliary losses of routers, which are computed inside blocks but belong to the
// model's loss: their gradients are added inside the blocks, at the scale of the model's loss.
//
// The model's thread. A block may be computed twice (trainer/model/checkpoint.h), and its result
// has no room for a second loss; so each term is attached to an activation: that activation's
// backward also runs the term's, at the scale with which the backward of the model's loss began.
// (Megatron-LM's MoEAuxLossAutoScaler does the same with a scale set by the trainer.)
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/custom_class.h>

namespace tidepool::trainer {

class RouterLosses {
 public:
  // Begins a pass whose loss will include the terms.
  void Begin() {
    values_.clear();
    counts_ = true;
  }
  // Ends the forward pass: recomputation adds no values.
  void End() { counts_ = false; }

  // Returns `x`, whose backward also runs that of `term`, a scalar. Without gradients the term is
  // ignored.
  at::Tensor Attach(const at::Tensor& x, const at::Tensor& term);
  // The model's loss plus the values of all terms since Begin. Its gradient sets their scale.
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
