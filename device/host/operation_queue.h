// OperationQueue: the unbounded FIFO queue between the owner of a host stream and the thread that
// executes it.
//
// One producer thread (Push) and one consumer thread (Front, Pop, Blocked...); they may be the
// same. Invariants:
//  1. operations come out in the order of Push;
//  2. blocks of operations form a singly linked list; only the producer appends, only the consumer
//     removes;
//  3. the consumer returns its last emptied block through spare_, so that a queue in steady use
//     allocates nothing except kernel calls.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "device/device.h"

namespace tidepool::device {

// A kernel with a copy of its arguments.
struct KernelCall {
  const Kernel* kernel = nullptr;
  alignas(std::max_align_t) std::array<std::byte, kKernelArgumentBytesMax> arguments = {};
};

// One operation of a stream; its kind determines the valid fields.
struct Operation {
  enum class Kind : uint8_t { kCopy, kZero, kKernel, kWaitFlag, kWaitMarker, kWriteFlag, kMarker };
  Kind kind = Kind::kMarker;
  std::byte* dst = nullptr;        // kCopy, kZero
  const std::byte* src = nullptr;  // kCopy
  // Bytes of a copy or of zeros, items of a kernel, value of a flag, number of a marker.
  uint64_t value = 0;
  const Flag* wait = nullptr;                        // kWaitFlag
  Flag* write = nullptr;                             // kWriteFlag
  std::unique_ptr<const KernelCall> call = nullptr;  // kKernel
  // kWaitMarker: that stream's counter of passed markers.
  std::shared_ptr<const Flag> other = nullptr;
};

class OperationQueue {
 public:
  OperationQueue();
  ~OperationQueue();
  OperationQueue(const OperationQueue&) = delete;
  OperationQueue& operator=(const OperationQueue&) = delete;

  // A kKernel call with a copy of the arguments.
  static std::unique_ptr<const KernelCall> CallOf(const Kernel& kernel, const void* arguments);
  // Producer only.
  void Push(Operation operation);
  // Consumer only: the oldest operation, or null. The pointer lives until Pop.
  const Operation* Front();
  // Consumer only; requires that Front() is not null.
  void Pop();

 private:
  static constexpr uint32_t kBlockOperations = 512;
  struct Block {
    std::array<Operation, kBlockOperations> operations;
    std::atomic<uint32_t> filled{0};  // operations [0, filled) are written; release by the producer
    std::atomic<Block*> next{nullptr};
  };

  Block* write_block_;         // producer only
  Block* read_block_;          // consumer only; owns the list from here on
  uint32_t read_index_ = 0;    // consumer only
  std::atomic<Block*> spare_;  // set by the consumer, taken by the producer; null if there is none
};

}  // namespace tidepool::device
