// Kernel: a function that a stream runs over memory of its device (Stream::Launch): code for a GPU,
// and the same for a host.
//
// Constant data with the life of the process. The function takes one block of arguments by value,
// in which planes are addresses of the stream's device, and has a number of items to work on, each
// once, in any order.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tidepool::device {

// Code for GPUs: what cuModuleLoadData takes.
struct KernelImage {
  const void* data = nullptr;  // a fatbin, or PTX that ends with a zero
  const char* without = "";    // why this build has no code in it; empty: it has
};

inline constexpr uint32_t kKernelArgumentBytesMax = 128;

struct Kernel {
  const char* name = "";  // of the function in the image, and in errors
  const KernelImage* image = nullptr;
  uint32_t argument_bytes = 0;  // at most kKernelArgumentBytesMax
  // On a GPU: blocks of `threads`, as many as the GPU holds at once, fewer where each thread would
  // have less than `items_a_thread`. Thread i of n takes the items that the function gives it.
  uint32_t threads = 0;
  uint32_t items_a_thread = 1;
  // On the host: does items [first, first + count); pieces begin at multiples of `items_a_thread`.
  // `item_bytes`: what an item counts for where work is bounded in bytes (Stream::Progress).
  void (*host)(const std::byte* arguments, uint64_t first, uint64_t count) = nullptr;
  uint32_t item_bytes = 1;
};

}  // namespace tidepool::device
