// OperatorInputs: which bound parameters a dispatched operator will read, and which one it would
// write.
//
// The thread that runs the operator. The operator's schema decides: an argument marked as an alias
// of a result is not read (the operator makes another view of it, or reads it through an operator
// of its own), one marked as written is a write. A function without a schema reads all of its
// arguments.
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

// Fills `reads` in order of appearance; looks into lists and optional tensors. Clears it first;
// allocates nothing if it has the capacity and the operator was seen before. Returns the parameter
// that the operator would write, StorageBinding::kNoParameter for none.
uint32_t FindParametersUsed(const StorageBinding& binding, const at::RecordFunction& function,
                            std::vector<ParameterId>* reads);
std::vector<ParameterId> ParametersRead(const StorageBinding& binding,
                                        const at::RecordFunction& function);
// The same for unbound tensors: `find` returns the parameter that contains a tensor,
// StorageBinding::kNoParameter for none.
using FindParameter = std::function<uint32_t(const at::Tensor&)>;
std::vector<ParameterId> ParametersRead(const FindParameter& find,
                                        const at::RecordFunction& function);

// Fills `reads` with the parameters passed to the function whose backward node runs now on this
// thread, if that function is a user's own (an autograd::Function, from C++ or Python); clears it
// first. LibTorch's own nodes read through operators.
void FindParametersOfNode(const FindParameter& find, std::vector<ParameterId>* reads);

}  // namespace tidepool::trainer
