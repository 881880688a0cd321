// RecordUseOrder: in which order a model uses its parameters, for models that do not declare it,
// found by one trace-only forward.
//
// The thread that trains later, before there is a layout: notes of parameters in this order make
// chunks that are used in one go (trainer/layout/build_layout.h). In the trace-only forward every
// parameter reads as zeros, from pages that take no memory; no server is needed.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/status.h"

namespace at {
class Tensor;
}

namespace tidepool::trainer {

// Indices of `parameters` (dense tensors on one device) in the order of their first
// use by `forward`; those that it does not use come last, in the order given. The parameters' own
// memory is given up: they must not be read until an engine has been made of them. Errors:
// kMemoryMapFailed, kInternal (a tensor that is not dense), kLibraryFailed (forward threw).
Result<std::vector<uint32_t>> RecordUseOrder(const std::vector<at::Tensor>& parameters,
                                             const std::function<void()>& forward);

}  // namespace tidepool::trainer
