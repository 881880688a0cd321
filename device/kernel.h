// Kernel: a function that a stream runs over memory of its device (Stream::Launch): code for a GPU,
// and the equivalent for a host.
//
// Constant data with static lifetime. The function takes one block of arguments by value, in which
// planes are addresses of the stream's device, and processes a number of items, each once, in any
// order.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tidepool::device {

// Code for GPUs, as accepted by cuModuleLoadData.
struct KernelImage {
  const void* data = nullptr;  // a fatbin, or PTX that ends with a zero
  const char* without = "";    // why this build has no code; empty: it has
};

inline constexpr uint32_t kKernelArgumentBytesMax = 128;

struct Kernel {
  const char* name = "";  // of the function in the image, and in errors
  const KernelImage* image = nullptr;
  uint32_t argument_bytes = 0;  // at most kKernelArgumentBytesMax
  // On a GPU: blocks of `threads`, as many as the GPU holds at once, fewer if each thread would
  // have less than `items_a_thread`. The function assigns items to thread i of n.
  uint32_t threads = 0;
  uint32_t items_a_thread = 1;
  // On the host: does items [first, first + count); pieces begin at multiples of `items_a_thread`.
  // `item_bytes`: the cost of an item if work is bounded in bytes (Stream::Progress).
  void (*host)(const std::byte* arguments, uint64_t first, uint64_t count) = nullptr;
  uint32_t item_bytes = 1;
};

}  // namespace tidepool::device
