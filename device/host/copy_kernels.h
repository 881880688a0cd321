// Copy kernels: the copy methods of this CPU. All write the same bytes; they differ in their effect
// on the caches.
//
// Any thread; no state. Which is fastest depends on the machine: device/host/copy_tuning.h measures
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tidepool::device {

// A copy method.
enum class CopyKernel : uint8_t {
  // Glibc's; bypasses the caches only beyond a size that it derives from the last-level cache.
  kMemcpy,
  kRepMovs,      // the CPU's own string copy
  kStreamPages,  // bypasses the caches, eight pages side by side
  kStreamAhead,  // bypasses the caches, line by line, prefetching
  kStreamWide,   // the same with one store per line (AVX-512)
};

// "memcpy", "rep movsb", ...: for logs and reports.
const char* NameOf(CopyKernel kernel);
// The kernels that this CPU supports, kMemcpy first.
std::vector<CopyKernel> CopyKernels();
// Ranges must not overlap. All stores are ordered before any later store of this thread, as with
// memcpy.
void CopyWith(CopyKernel kernel, std::byte* dst, const std::byte* src, uint64_t bytes);

}  // namespace tidepool::device
