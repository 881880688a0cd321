// HostBytes: counts the bytes of LibTorch's tensors in host memory, from the first call on, for the
// whole process.
//
// Any thread; counters are atomic. It takes the place of LibTorch's CPU allocator for good: tensors
// may outlive whoever asks. Not counted: tensors made before, and what operators take elsewhere
// (packed operands of matrix products, stacks of threads).
#pragma once

#include <cstdint>

namespace tidepool::trainer {

class HostBytes {
 public:
  // Begins to count, if that has not been done.
  static void Count();
  // Bytes of the counted tensors that are alive.
  static uint64_t Live();
  // The maximum of Live() since the call before, or since Count.
  static uint64_t TakePeak();
};

}  // namespace tidepool::trainer
