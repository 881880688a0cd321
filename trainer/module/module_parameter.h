// ModuleParameter: one parameter of a user's module, in the form that its job takes.
//
// Any thread; pure functions.
#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include "base/dtype.h"
#include "base/status.h"
#include "trainer/layout/build_layout.h"

namespace tidepool::trainer {

// One parameter of the module.
struct ModuleParameter {
  std::string name;
  // A dense leaf on the job's device. If it requires a gradient, it is trained and has the job's
  // dtype or fp32; otherwise it is frozen and has any type.
  at::Tensor tensor;
  uint32_t group = 0;      // index of ModuleSettings::groups
  bool multi_use = false;  // the module uses it more than once
  uint32_t unit = 0;       // ParameterNote::unit: an expert's; 0: used in every micro-batch
};

// Checks that a job of `dtype` can take it: memory, type, name and shape. Errors: kUsageError
// (names the parameter).
Status CheckParameter(const ModuleParameter& parameter, DType dtype);
// Its note for the layout.
ParameterNote NoteOf(const ModuleParameter& parameter);
// kUsageError: "the parameter <name> <what>".
Status BadParameter(const std::string& name, const std::string& what);

}  // namespace tidepool::trainer
