// CatchTorch: LibTorch's exceptions as the house's errors.
//
// Any thread. Everything that may throw is called through it: nothing of the house throws.
#pragma once

#include <functional>

#include "base/status.h"

namespace tidepool::trainer {

// ok, or what `body` threw: kDeviceMemoryShort (a device's allocator had no room), kCudaFailed (a
// call of the CUDA runtime failed; it may be that of an earlier operator), that of a ModelError,
// kLibraryFailed (all else).
Status CatchTorch(const std::function<void()>& body);

}  // namespace tidepool::trainer
