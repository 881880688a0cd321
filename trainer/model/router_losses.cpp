#include "trainer/model/router_losses.h"

#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace tidepool::trainer {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct AttachTerm : torch::autograd::Function<AttachTerm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& term,
                            c10::intrusive_ptr<RouterLosses::Scale> scale) {
    context->saved_data["scale"] = c10::IValue::make_capsule(std::move(scale));
    return x.view_as(x);
    static_cast<void>(term);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto scale = c10::static_intrusive_pointer_cast<RouterLosses::Scale>(
        context->saved_data["scale"].toCapsule());
    TORCH_CHECK(scale->value.defined(), "the terms of routers were added to no loss");
    return {gradients[0], scale->value, at::Tensor()};
  }
};

struct KeepScale : torch::autograd::Function<KeepScale> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& loss,
                            c10::intrusive_ptr<RouterLosses::Scale> scale) {
    context->saved_data["scale"] = c10::IValue::make_capsule(std::move(scale));
    return loss.view_as(loss);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto scale = c10::static_intrusive_pointer_cast<RouterLosses::Scale>(
        context->saved_data["scale"].toCapsule());
    scale->value = gradients[0];
    return {gradients[0], at::Tensor()};
  }
};

at::Tensor RouterLosses::Attach(const at::Tensor& x, const at::Tensor& term) {
  if (counts_) values_.push_back(term.detach());
  if (!at::GradMode::is_enabled() || !term.requires_grad()) return x;
  return AttachTerm::apply(x, term, scale_);
}

at::Tensor RouterLosses::AddTo(const at::Tensor& loss) {
  if (values_.empty() || !at::GradMode::is_enabled()) return loss;
  return KeepScale::apply(loss, scale_) + at::stack(values_).sum();
}

}  // namespace tidepool::trainer
