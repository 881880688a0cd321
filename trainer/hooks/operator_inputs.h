// OperatorInputs: which bound parameters a dispatched operator is about to read.
//
// The thread that runs the operator. Views read nothing, so they have none.
#pragma once

#include <vector>

#include "base/ids.h"
#include "trainer/hooks/storage_binding.h"

namespace at {
struct RecordFunction;
}

namespace tidepool::trainer {

// In order of appearance; lists and optional tensors are looked into. Empty for operators that only make another view of a tensor.
std::vector<ParameterId> ParametersRead(const StorageBinding& binding, const at::RecordFunction& function);

}  // namespace tidepool::trainer
