// StepRecorder: records one forward and backward that other code runs on LibTorch's meta device:
// order of parameter use, gradients, bytes, arithmetic.
//
// The thread that runs forward and backward, with LibTorch's backward threads off
// (at::AutogradState); one recorder per thread at a time. Parameters are identified by their
// storage, so views and Python's FakeTensors work, too. A gradient is freed on arrival, as when it
// moves to the rCache (trainer/hooks/gradient_hook.h).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "trainer/plan/use_trace.h"
#include "trainer/profile/meta_bytes.h"

namespace at {
class Tensor;
}

namespace tidepool::trainer {

// The needs of a step.
struct StepProfile {
  uint64_t buffer_bytes = 0;  // inputs and targets, allocated through the whole step
  // Peak in addition to buffers and parameters; gradients are freed as they arrive.
  uint64_t activation_bytes = 0;
  uint64_t boundary_bytes = 0;  // one block's input: what checkpointing keeps per block
  uint64_t operators = 0;       // number dispatched
  // Multiplications and additions of its matrix products, forward and backward; nothing else is
  // counted.
  double arithmetic = 0;
  UseTrace trace;  // notes are indices of the watched parameters
};

class StepRecorder {
 public:
  // Call when the model is made: all bytes counted from now on belong to the step. `bytes` outlives
  // the object.
  explicit StepRecorder(MetaBytes* bytes);
  ~StepRecorder();
  StepRecorder(const StepRecorder&) = delete;
  StepRecorder& operator=(const StepRecorder&) = delete;

  // Call when the inputs are made, before forward. `parameters` are on the meta device, each in its
  // own storage; those that require a gradient have no hook for it yet. `stays[i]`: the gradient of
  // parameter i stays until the end of backward. Call once.
  void Watch(std::vector<at::Tensor> parameters, const std::vector<bool>& stays);
  // Call when an operator has ended and its temporaries for shape inference are freed: live bytes
  // now count for the peak. If it is never called, all bytes ever alive count.
  void OperatorEnded();
  // Call after backward: stops watching. Requires Watch.
  StepProfile Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tidepool::trainer
