#include "device/host/operation_queue.h"

#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/hot.h"

namespace tidepool::device {

OperationQueue::OperationQueue()
    : write_block_(std::make_unique<Block>().release()),
      read_block_(write_block_),
      spare_(std::make_unique<Block>().release()) {}

OperationQueue::~OperationQueue() {
  while (read_block_ != nullptr) {
    const std::unique_ptr<Block> block(read_block_);
    read_block_ = block->next.load(std::memory_order_acquire);
  }
  const std::unique_ptr<Block> spare(spare_.load(std::memory_order_acquire));
}

std::unique_ptr<const KernelCall> OperationQueue::CallOf(const Kernel& kernel,
                                                         const void* arguments) {
  TP_CHECK(kernel.argument_bytes <= kKernelArgumentBytesMax,
           "the block of arguments of a kernel is too long");
  auto call = std::make_unique<KernelCall>();
  call->kernel = &kernel;
  std::memcpy(call->arguments.data(), arguments, kernel.argument_bytes);
  return call;
}

TP_HOT void OperationQueue::Push(Operation operation) {
  uint32_t filled = write_block_->filled.load(std::memory_order_relaxed);
  if (filled == kBlockOperations) {
    Block* fresh = spare_.exchange(nullptr, std::memory_order_acquire);
    if (fresh == nullptr) fresh = std::make_unique<Block>().release();
    write_block_->next.store(fresh, std::memory_order_release);
    write_block_ = fresh;
    filled = 0;
  }
  write_block_->operations[filled] = std::move(operation);
  write_block_->filled.store(filled + 1, std::memory_order_release);
}

TP_HOT const Operation* OperationQueue::Front() {
  if (read_index_ == kBlockOperations) {
    Block* next = read_block_->next.load(std::memory_order_acquire);
    if (next == nullptr) return nullptr;
    std::unique_ptr<Block> empty(read_block_);
    read_block_ = next;
    read_index_ = 0;
    empty->filled.store(0, std::memory_order_relaxed);
    empty->next.store(nullptr, std::memory_order_relaxed);
    Block* none = nullptr;
    // The release orders the two stores above before the producer's use of the block.
    if (spare_.compare_exchange_strong(none, empty.get(), std::memory_order_release,
                                       std::memory_order_relaxed))
      empty.release();
  }
  return read_index_ < read_block_->filled.load(std::memory_order_acquire)
             ? &read_block_->operations[read_index_]
             : nullptr;
}

TP_HOT void OperationQueue::Pop() {
  read_block_->operations[read_index_].call.reset();
  read_block_->operations[read_index_].other.reset();
  ++read_index_;
}

}  // namespace tidepool::device
