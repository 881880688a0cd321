// OperatorInputs: which bound parameters a dispatched operator is about to read.
//
// The thread that runs the operator. Views read nothing, so they have none.
#pragma once

#include <functional>
#include <vector>

#include "base/ids.h"
#include "trainer/hooks/storage_binding.h"

namespace at {
struct RecordFunction;
class Tensor;
}  // namespace at

namespace tidepool::trainer {

// In order of appearance; lists and optional tensors are looked into. Empty for operators that only
// make another view of a tensor. `parameters` is cleared first; nothing is allocated where it has
// the room.
void FindParametersRead(const StorageBinding& binding, const at::RecordFunction& function,
                        std::vector<ParameterId>* parameters);
std::vector<ParameterId> ParametersRead(const StorageBinding& binding,
                                        const at::RecordFunction& function);
// The same for tensors that are not bound: `find` says which parameter a tensor lies in,
// StorageBinding::kNoParameter for none.
using FindParameter = std::function<uint32_t(const at::Tensor&)>;
std::vector<ParameterId> ParametersRead(const FindParameter& find,
                                        const at::RecordFunction& function);

}  // namespace tidepool::trainer
