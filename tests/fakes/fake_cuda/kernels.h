// FakeKernel: what the stand-in does when a kernel is launched: the project's kernels, by their
// names, run on the CPU.
//
// Any thread. The image that a program loads is not looked at: the stand-in has the functions
// itself, so that a program that was built without nvcc runs them here as well.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tidepool::fake_cuda {

struct FakeKernel {
  const char* name = "";
  uint64_t argument_bytes = 0;
  uint32_t threads = 0;  // of a block, for which it was compiled
  // All threads, one after another, on a thread that flushes denormals. False: a plane is no memory
  // that the GPU reaches.
  bool (*run)(const std::byte* arguments, uint64_t threads) = nullptr;
};

// Null: none of this name.
const FakeKernel* KernelNamed(const std::string& name);

}  // namespace tidepool::fake_cuda
