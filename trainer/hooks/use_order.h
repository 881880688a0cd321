// RecordUseOrder: finds the order in which a model uses its parameters by one trace-only forward,
// for models that do not declare it.
//
// The later training thread, before a layout exists: parameter notes in this order make chunks
// whose parameters are used together (trainer/layout/build_layout.h). In the trace-only forward
// every parameter reads as zeros, from pages that take no memory; no server is needed.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/status.h"

namespace at {
class Tensor;
}

namespace tidepool::trainer {

// Returns indices of `parameters` (dense tensors on one device) in the order of their first use by
// `forward`; unused ones come last, in the given order. Frees the parameters' own memory: they must
// not be read until an engine has been made of them. Errors: kMemoryMapFailed, kInternal (a tensor
// that is not dense), kLibraryFailed (forward threw).
Result<std::vector<uint32_t>> RecordUseOrder(const std::vector<at::Tensor>& parameters,
                                             const std::function<void()>& forward);

}  // namespace tidepool::trainer
