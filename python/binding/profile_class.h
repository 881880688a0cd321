// torch.classes.tidepool.Profile: a StepRecorder (trainer/profile/step_recorder.h) for a forward
// and backward that Python runs, on FakeTensors.
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
  // The bytes of tensors on the meta device are counted from here to the end of the object, or to
  // Stop. Throws where another one counts.
  Profile();
  ~Profile() override;

  // The model is made; then inputs are.
  void ModelMade();
  // As those of StepRecorder; `stay`: indices of parameters.
  void Watch(const std::vector<at::Tensor>& parameters, const std::vector<int64_t>& stay);
  void OperatorEnded();
  // Backward has ended. JSON: order (of first use), read (how many of them are read), again (those
  // that are used behind their gradients), activation_bytes, buffer_bytes, arithmetic, operators.
  std::string Finish();
  // The inputs were a stand-in: what depends on their size is not known.
  void ForgetSizes();
  // Nothing is watched or counted any longer. Harmless when repeated.
  void Stop();

  // What Finish has found. Throws before.
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
