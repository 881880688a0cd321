#include "trainer/model/checkpoint.h"

#include <utility>

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

namespace tidepool::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Keeps the piece in the autograd context, with its input if a store holds that.
struct PieceHolder : torch::CustomClassHolder {
  PieceHolder(CheckpointedPiece kept, std::shared_ptr<ActivationStore> where)
      : piece(std::move(kept)), store(std::move(where)) {}
  ~PieceHolder() override {
    if (slot != 0) store->Drop(slot);
  }
  CheckpointedPiece piece;
  std::shared_ptr<ActivationStore> store;  // null: the context holds the input
  ActivationStore::Slot slot = 0;
};

struct CheckpointFunction : torch::autograd::Function<CheckpointFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            c10::intrusive_ptr<PieceHolder> holder) {
    if (holder->store == nullptr) context->save_for_backward({input});
    // Before the piece: the copy overlaps the piece's operators, and the previous input has left
    // when the piece allocates memory.
    if (holder->store != nullptr) holder->slot = holder->store->Put(input);
    at::Tensor output = holder->piece(input);  // Function::apply has turned gradients off
    context->saved_data["piece"] = c10::IValue::make_capsule(std::move(holder));
    return output;
  }

  static variable_list backward(AutogradContext* context, variable_list output_gradients) {
    const auto holder =
        c10::static_intrusive_pointer_cast<PieceHolder>(context->saved_data["piece"].toCapsule());
    const at::Tensor kept = holder->store != nullptr
                                ? holder->store->Take(std::exchange(holder->slot, 0))
                                : context->get_saved_variables()[0];

    at::Tensor input = kept.detach().requires_grad_(true);
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

at::Tensor Checkpoint(const CheckpointedPiece& piece, const at::Tensor& input,
                      const std::shared_ptr<ActivationStore>& store) {
  if (!at::GradMode::is_enabled() || !input.requires_grad()) return piece(input);
  return CheckpointFunction::apply(input, c10::make_intrusive<PieceHolder>(piece, store));
}

}  // namespace tidepool::trainer
