#include "trainer/hooks/gradient_hook.h"

#include <thread>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace tidepool::trainer {
namespace {

// Copies a gradient to its place in the chunk; on a device in the current stream. The dtype is the
// parameter's; LibTorch checks that before it accumulates. The device is passed explicitly, or
// LibTorch would ask the driver for that of the address.
void CopyGradient(const at::Tensor& gradient, std::byte* place) {
  const at::NoGradGuard no_grad;
  at::for_blob(place, gradient.sizes())
      .options(gradient.options())
      .target_device(gradient.device())
      .make_tensor()
      .copy_(gradient, /*non_blocking=*/true);
}

}  // namespace

struct GradientHooks::Hook final : torch::autograd::PostAccumulateGradHook {
  Hook(GradientHooks* hooks, ParameterId id) : owner(hooks), parameter(id) {}
  void operator()(const torch::autograd::Variable&) override { owner->Arrived(parameter); }
  GradientHooks* owner;
  ParameterId parameter;
};

GradientHooks::GradientHooks(ParameterCache* cache, OperatorHook* operators,
                             std::vector<at::Tensor> parameters, GradientTeller teller)
    : cache_(cache),
      operators_(operators),
      owner_(std::this_thread::get_id()),
      teller_(teller),
      parameters_(std::move(parameters)) {
  if (teller_ == GradientTeller::kCaller) return;

  for (ParameterId id = 0; id < parameters_.size(); ++id) {
    if (!parameters_[id].requires_grad()) continue;
    torch::autograd::impl::set_post_acc_grad_hooks(parameters_[id],
                                                   std::make_unique<Hook>(this, id));
  }
}

GradientHooks::~GradientHooks() {
  if (teller_ == GradientTeller::kCaller) return;
  for (const at::Tensor& parameter : parameters_) {
    if (parameter.requires_grad())
      torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
  }
}

void GradientHooks::Arrived(ParameterId parameter) {
  if (std::this_thread::get_id() != owner_) return operators_->NoteElsewhere();
  at::Tensor& gradient = parameters_[parameter].mutable_grad();
  if (!operators_->status().ok()) {
    gradient.reset();
    return;
  }

  if (sink_) {
    Status taken = sink_(parameter, gradient);
    gradient.reset();
    operators_->ApplyMoves();
    if (!taken.ok()) operators_->Latch(std::move(taken));
    return;
  }

  Result<std::byte*> place = cache_->GradientPlace(parameter);
  operators_->ApplyMoves();
  if (!place.ok()) return operators_->Latch(place.status());
  if (cache_->trace_only()) gradient.reset();
  // Separate-gradient mode: LibTorch keeps the gradient until the end of backward.
  if (place.value() == nullptr) return;
  CopyGradient(gradient, place.value());
  gradient.reset();
  Status done = cache_->GradientDone(parameter);
  operators_->ApplyMoves();
  if (!done.ok()) operators_->Latch(std::move(done));
}

Status GradientHooks::CollectSeparate() {
  for (const ChunkId chunk : cache_->SeparateChunks()) {
    TP_ASSIGN_OR_RETURN(const SeparateBlock block, cache_->BorrowBlock(chunk));
    operators_->ApplyMoves();
    for (const SeparatePlace& place : block.places) {
      at::Tensor& gradient = parameters_[place.parameter].mutable_grad();
      if (!gradient.defined()) continue;  // the block was zero-filled
      CopyGradient(gradient, place.data);
      gradient.reset();
    }

    TP_RETURN_IF_ERROR(cache_->SubmitBorrowed(chunk));
    operators_->ApplyMoves();
  }
  return {};
}

// Reported gradients have been moved: one that is left was not reported.
Status GradientHooks::CheckAllArrived() const {
  for (ParameterId id = 0; id < parameters_.size(); ++id) {
    if (!parameters_[id].requires_grad() || !parameters_[id].grad().defined()) continue;
    return Status(ErrorId::kUsageError,
                  "the gradient of parameter " + cache_->NameOf(id) + " was not handed in")
        .Why(
            "its post-accumulate-grad hook was removed or replaced, or p.grad was set by hand; "
            "LibTorch has one such hook a tensor")
        .Fix("register hooks with p.register_post_accumulate_grad_hook, and leave p.grad alone");
  }
  return {};
}

Status GradientHooks::FinishBackward(uint32_t micro_batch) {
  if (!operators_->status().ok()) return operators_->status();
  Status finished = CollectSeparate();
  if (finished.ok()) finished = CheckAllArrived();
  if (finished.ok()) finished = cache_->FinishBackward(micro_batch);
  operators_->ApplyMoves();
  if (!finished.ok()) operators_->Latch(finished);
  return operators_->status();
}

void GradientHooks::DropAll() {
  for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
}

}  // namespace tidepool::trainer
