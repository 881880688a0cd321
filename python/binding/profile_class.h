// torch.classes.tidepool.Profile: a StepRecorder (trainer/profile/step_recorder.h) for a forward
// and backward that Python runs on FakeTensors.
//
// One at a time, on the main thread; LibTorch calls methods without the interpreter's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/custom_class.h>

#include "trainer/profile/meta_bytes.h"
#include "trainer/profile/step_recorder.h"

namespace tidepool::python {

class Profile : public torch::CustomClassHolder {
 public:
  // Counts the bytes of tensors on the meta device from now until destruction, or Stop. Throws if
  // another object is counting.
  Profile();
  ~Profile() override;

  // Call when the model is made, before the inputs.
  void ModelMade();
  // Like StepRecorder's; `stay`: indices of parameters.
  void Watch(const std::vector<at::Tensor>& parameters, const std::vector<int64_t>& stay);
  void OperatorEnded();
  // Ends after backward. JSON: order (of first use), read (the number of parameters read), again
  // (those used after their gradients), activation_bytes, buffer_bytes, arithmetic, operators.
  std::string Finish();
  // The inputs were dummies: results that depend on their size are unknown.
  void ForgetSizes();
  // Stops watching and counting. Idempotent.
  void Stop();

  // The result of Finish. Throws before it.
  const trainer::StepProfile& step() const;

 private:
  std::unique_ptr<trainer::MetaBytes> bytes_;
  std::unique_ptr<trainer::StepRecorder> recorder_;
  uint32_t parameters_ = 0;
  bool finished_ = false;
  trainer::StepProfile step_;
};

// Adds the class to the library.
void DefineProfile(torch::Library* library);

}  // namespace tidepool::python
