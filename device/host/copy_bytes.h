// CopyBytes: a memory copy for chunks, which are larger than any cache, with the kernel measured to
// be the fastest.
//
// Any thread. A large copy bypasses the caches: a plain store first reads the line that it
// overwrites (three transfers for two). Small copies stay in the caches, where their reader soon
// finds them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/units.h"
#include "device/host/copy_kernels.h"

namespace tidepool::device {

// From this size on, a copy bypasses the caches: it is larger than a core's own cache, so it would
// evict everything else.
inline constexpr uint64_t kStreamingCopyMin = 4 * kMiB;

// Copies `bytes`, which may be a piece of a copy of `copy_bytes` in all (which decides the method).
// Ranges must not overlap. All stores are ordered before any later store of this thread, as with
// memcpy.
void CopyBytes(std::byte* dst, const std::byte* src, uint64_t bytes, uint64_t copy_bytes);

// The kernel for large copies: kStreamPages until another kernel of this CPU is set. Any choice
// gives the same bytes.
CopyKernel LargeCopyKernel();
void SetLargeCopyKernel(CopyKernel kernel);

}  // namespace tidepool::device
