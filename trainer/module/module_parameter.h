// ModuleParameter: one parameter of a user's module, as its job takes it.
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
  // A dense leaf on the job's device. One that asks for a gradient is trained, and has the job's
  // dtype or fp32; another is frozen, and has any type.
  at::Tensor tensor;
  uint32_t group = 0;      // index of ModuleSettings::groups
  bool multi_use = false;  // the module uses it at several places
};

// Whether a job of `dtype` can take it: its memory, type, name and shape. Errors: kUsageError
// (names the parameter).
Status CheckParameter(const ModuleParameter& parameter, DType dtype);
// What the layout must know of it.
ParameterNote NoteOf(const ModuleParameter& parameter);
// kUsageError: "the parameter NAME WHAT".
Status BadParameter(const std::string& name, const std::string& what);

}  // namespace tidepool::trainer
