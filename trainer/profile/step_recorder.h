// StepRecorder: what one forward and backward on LibTorch's meta device does with a model's
// parameters and memory, while other code runs it: the order of use, gradients, bytes, work.
//
// The thread that runs forward and backward, with LibTorch's threads of backward off
// (at::AutogradState); one recorder a thread at a time. Parameters are found by their storage, so
// views of them count, and FakeTensors of Python are parameters as good as plain ones.
// A gradient leaves as it comes, as it does into the rCache (trainer/hooks/gradient_hook.h).
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

// What a step takes.
struct StepProfile {
  uint64_t buffer_bytes = 0;  // inputs and targets: there through the whole step
  // The most that is there beside them and the parameters; gradients leave for the rCache as they
  // come.
  uint64_t activation_bytes = 0;
  uint64_t boundary_bytes = 0;  // of one block's input: what checkpointing keeps of a block
  uint64_t operators = 0;       // that were dispatched
  // Multiplications and additions of its matrix products, forward and backward; what else it
  // computes is not counted.
  double arithmetic = 0;
  UseTrace trace;  // notes are the indices of the parameters that were watched
};

class StepRecorder {
 public:
  // The model is made: what `bytes` counts from here on belongs to the step. `bytes` outlives it.
  explicit StepRecorder(MetaBytes* bytes);
  ~StepRecorder();
  StepRecorder(const StepRecorder&) = delete;
  StepRecorder& operator=(const StepRecorder&) = delete;

  // The inputs are made, and forward begins. `parameters` lie on the meta device, each in a storage
  // of its own; those that ask for a gradient have no such hook yet. `stays[i]`: the gradient of
  // parameter i stays until the end of backward. Call once.
  void Watch(std::vector<at::Tensor> parameters, const std::vector<bool>& stays);
  // An operator has ended, and what it needed for finding out shapes is gone: what lives now counts
  // for the peak. Without any such call, all that ever lived counts.
  void OperatorEnded();
  // Backward has ended: nothing is watched any longer. Requires Watch.
  StepProfile Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tidepool::trainer
