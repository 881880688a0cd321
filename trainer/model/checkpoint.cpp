#include "trainer/model/checkpoint.h"

#include <utility>

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

namespace tidepool::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Lets the autograd context keep the piece.
struct PieceHolder : torch::CustomClassHolder {
  explicit PieceHolder(CheckpointedPiece kept) : piece(std::move(kept)) {}
  CheckpointedPiece piece;
};

struct CheckpointFunction : torch::autograd::Function<CheckpointFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, c10::intrusive_ptr<PieceHolder> holder) {
    context->save_for_backward({input});
    at::Tensor output = holder->piece(input);  // Function::apply has turned gradients off
    context->saved_data["piece"] = c10::IValue::make_capsule(std::move(holder));
    return output;
  }

  static variable_list backward(AutogradContext* context, variable_list output_gradients) {
    const auto holder = c10::static_intrusive_pointer_cast<PieceHolder>(context->saved_data["piece"].toCapsule());
    at::Tensor input = context->get_saved_variables()[0].detach().requires_grad_(true);
    at::Tensor output;
    {
      const at::AutoGradMode with_gradients(true);
      output = holder->piece(input);
    }
    torch::autograd::backward({output}, {output_gradients[0]});
    return {input.grad(), at::Tensor()};
  }
};

}  // namespace

at::Tensor Checkpoint(const CheckpointedPiece& piece, const at::Tensor& input) {
  if (!at::GradMode::is_enabled() || !input.requires_grad()) return piece(input);
  return CheckpointFunction::apply(input, c10::make_intrusive<PieceHolder>(piece));
}

}  // namespace tidepool::trainer
