// CatchTorch: converts LibTorch's exceptions to a Status.
//
// Any thread. All calls that may throw go through it: our own code does not throw.
#pragma once

#include <functional>

#include "base/status.h"

namespace tidepool::trainer {

// ok, or the exception of `body`: kDeviceMemoryShort (a device's allocator had no room),
// kCudaFailed (a call of the CUDA runtime failed, perhaps for an earlier operator), that of a
// ModelError, kLibraryFailed (all else).
Status CatchTorch(const std::function<void()>& body);

}  // namespace tidepool::trainer
