// CallersBackward: what a program of the user's own does around LibTorch's backward that it calls
// itself (trainer/engine/open_steps.h): backward stays on its thread, and the steps hear of every
// gradient.
//
// The thread that trains. Made before the first forward, and ends there.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>
#include <c10/core/AutogradState.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "base/ids.h"
#include "base/status.h"
#include "trainer/engine/open_steps.h"

namespace tidepool::trainer {

class CallersBackward {
 public:
  CallersBackward() : before_(c10::AutogradState::get_tls_state().get_multithreading_enabled()) {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  }
  ~CallersBackward() { c10::AutogradState::get_tls_state().set_multithreading_enabled(before_); }
  CallersBackward(const CallersBackward&) = delete;
  CallersBackward& operator=(const CallersBackward&) = delete;

 private:
  const bool before_;
};

// What LibTorch calls; a failure is an exception, which comes out of backward.
struct TellOfArrival final : torch::autograd::PostAccumulateGradHook {
  TellOfArrival(OpenSteps* to, ParameterId id) : steps(to), parameter(id) {}
  void operator()(const torch::autograd::Variable&) override {
    const Status told = steps->Arrived(parameter);
    TORCH_CHECK(told.ok(), told.Format());
  }
  OpenSteps* steps;
  ParameterId parameter;
};

// Has `steps` told of the gradients of `tensor`, where it has any. They must not come when the
// engine has ended.
inline void TellArrivals(const at::Tensor& tensor, ParameterId parameter, OpenSteps* steps) {
  if (!tensor.requires_grad()) return;
  torch::autograd::impl::set_post_acc_grad_hooks(tensor,
                                                 std::make_unique<TellOfArrival>(steps, parameter));
}

}  // namespace tidepool::trainer
