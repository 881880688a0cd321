// OperatorInputs: which bound parameters a dispatched operator is about to read, and which one it
// would write.
//
// The thread that runs the operator. The operator's schema decides: an argument that it marks as an
// alias of a result is not read (the operator makes another view of it, or reads it through an
// operator of its own), one that it marks as written is a write. A function without a schema reads
// all of its arguments.
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

// `reads` is filled in order of appearance; lists and optional tensors are looked into. It is
// cleared first; nothing is allocated where it has the room and the operator was seen before.
// Returns the parameter that the operator would write, StorageBinding::kNoParameter for none.
uint32_t FindParametersUsed(const StorageBinding& binding, const at::RecordFunction& function,
                            std::vector<ParameterId>* reads);
std::vector<ParameterId> ParametersRead(const StorageBinding& binding,
                                        const at::RecordFunction& function);
// The same for tensors that are not bound: `find` says which parameter a tensor lies in,
// StorageBinding::kNoParameter for none.
using FindParameter = std::function<uint32_t(const at::Tensor&)>;
std::vector<ParameterId> ParametersRead(const FindParameter& find,
                                        const at::RecordFunction& function);

}  // namespace tidepool::trainer
