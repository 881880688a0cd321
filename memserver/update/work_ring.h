// WorkRing: a bounded, lock-free queue of Work from one thread to several workers (a bounded queue with a sequence number in each slot,
// after D. Vyukov).
//
// Push belongs to one thread; any worker may Pop; size and Empty are for every thread. Invariant: a slot's sequence says whose turn it is:
// `position` for the pusher, `position + 1` for a popper, and `position + capacity` when it was emptied.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>

#include "base/check.h"
#include "memserver/update/work.h"

namespace tidepool::memserver {

class WorkRing {
 public:
  explicit WorkRing(uint32_t capacity_min) : mask_(std::bit_ceil(uint64_t{capacity_min}) - 1), slots_(std::make_unique<Slot[]>(mask_ + 1)) {
    for (uint64_t i = 0; i <= mask_; ++i) slots_[i].sequence.store(i, std::memory_order_relaxed);
  }

  // For the pusher. A worker that stalls between taking a place and emptying it keeps one place from being used again.
  bool HasRoom() const {
    const uint64_t position = tail_.load(std::memory_order_relaxed);
    return slots_[position & mask_].sequence.load(std::memory_order_acquire) == position;
  }

  // Requires HasRoom().
  void Push(const Work& work) {
    const uint64_t position = tail_.load(std::memory_order_relaxed);
    Slot& slot = slots_[position & mask_];
    TP_CHECK(slot.sequence.load(std::memory_order_acquire) == position, "the ring has room");
    slot.work = work;
    slot.sequence.store(position + 1, std::memory_order_release);
    // In one order with a worker's announcement that it will sleep (WorkerTeam): one of the two sees the other.
    tail_.store(position + 1, std::memory_order_seq_cst);
  }

  // False when there is nothing.
  bool Pop(Work* work) {
    uint64_t position = head_.load(std::memory_order_relaxed);
    while (true) {
      Slot& slot = slots_[position & mask_];
      const uint64_t sequence = slot.sequence.load(std::memory_order_acquire);
      if (sequence == position + 1) {
        if (!head_.compare_exchange_weak(position, position + 1, std::memory_order_relaxed)) continue;
        *work = slot.work;
        slot.sequence.store(position + mask_ + 1, std::memory_order_release);
        return true;
      }
      if (sequence < position + 1) return false;
      position = head_.load(std::memory_order_relaxed);
    }
  }

  // What was pushed and not taken; for the pusher never too small.
  uint32_t size() const {
    const uint64_t head = head_.load(std::memory_order_acquire);
    return static_cast<uint32_t>(tail_.load(std::memory_order_seq_cst) - head);
  }
  bool Empty() const { return size() == 0; }

 private:
  struct alignas(64) Slot {
    std::atomic<uint64_t> sequence{0};
    Work work;
  };
  const uint64_t mask_;
  const std::unique_ptr<Slot[]> slots_;
  alignas(64) std::atomic<uint64_t> tail_{0};
  alignas(64) std::atomic<uint64_t> head_{0};
};

}  // namespace tidepool::memserver
