// Copy kernels: the ways in which this CPU can copy memory. All write the same bytes; they differ
// in what they do to the caches.
//
// Any thread; no state. Which is fastest depends on the machine: device/host/copy_tuning.h
// measures.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tidepool::device {

// One of the ways.
enum class CopyKernel : uint8_t {
  // Glibc's; goes around the caches only beyond a size that it derives from the last cache.
  kMemcpy,
  kRepMovs,      // the CPU's own string copy
  kStreamPages,  // around the caches, eight pages side by side
  kStreamAhead,  // around the caches, line by line, reading ahead
  kStreamWide,   // the same with a whole line a store (AVX-512)
};

// "memcpy", "rep movsb", ...: for logs and reports.
const char* NameOf(CopyKernel kernel);
// Those that this CPU has, kMemcpy first.
std::vector<CopyKernel> CopyKernels();
// Ranges must not overlap. All stores are ordered before any later store of this thread, as with
// memcpy.
void CopyWith(CopyKernel kernel, std::byte* dst, const std::byte* src, uint64_t bytes);

}  // namespace tidepool::device
