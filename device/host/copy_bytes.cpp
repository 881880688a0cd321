#include "device/host/copy_bytes.h"

#include <atomic>

#include "base/hot.h"

namespace tidepool::device {
namespace {

// A property of the machine, not of a device or a stream: one variable for the process. Relaxed:
// any value is correct.
std::atomic<CopyKernel> large_kernel{CopyKernel::kStreamPages};

}  // namespace

TP_HOT void CopyBytes(std::byte* dst, const std::byte* src, uint64_t bytes, uint64_t copy_bytes) {
  CopyWith(copy_bytes < kStreamingCopyMin ? CopyKernel::kMemcpy : LargeCopyKernel(), dst, src,
           bytes);
}

CopyKernel LargeCopyKernel() {
  return large_kernel.load(std::memory_order_relaxed);
}

void SetLargeCopyKernel(CopyKernel kernel) {
  large_kernel.store(kernel, std::memory_order_relaxed);
}

}  // namespace tidepool::device
