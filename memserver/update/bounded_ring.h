// BoundedRing: a bounded, lock-free queue of plain values between threads (a ring with a sequence
// number in each slot, after D. Vyukov).
//
// Any thread may call anything except HasRoom. Invariant: a slot's sequence number says whose turn
// it is: `position` for the pusher of that position, `position + 1` for its popper, and `position +
// capacity` once it was emptied.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>

namespace tidepool::memserver {

template <typename T>
class BoundedRing {
 public:
  explicit BoundedRing(uint32_t capacity_min)
      : mask_(std::bit_ceil(std::max<uint64_t>(capacity_min, 2)) -
              1),  // with one slot, full and free would have the same sequence number
        slots_(std::make_unique<Slot[]>(mask_ + 1)) {
    for (uint64_t i = 0; i <= mask_; ++i) slots_[i].sequence.store(i, std::memory_order_relaxed);
  }

  uint32_t capacity() const { return static_cast<uint32_t>(mask_ + 1); }
  // For a ring with a single pushing thread, on that thread: true if TryPush will succeed. A popper
  // that stalls between claiming a slot and emptying it keeps one slot from being reused.
  bool HasRoom() const {
    const uint64_t position = tail_.load(std::memory_order_relaxed);
    return slots_[position & mask_].sequence.load(std::memory_order_acquire) == position;
  }

  // False if the ring is full.
  bool TryPush(const T& value) {
    uint64_t position = tail_.load(std::memory_order_relaxed);
    while (true) {
      Slot& slot = slots_[position & mask_];
      const auto lead =
          static_cast<int64_t>(slot.sequence.load(std::memory_order_acquire) - position);
      if (lead < 0) return false;
      if (lead > 0) {
        position = tail_.load(std::memory_order_relaxed);
        continue;
      }
      // Ordered with a popper's announcement that it will sleep (WorkerTeam): one of the two sees
      // the other.
      if (!tail_.compare_exchange_weak(position, position + 1, std::memory_order_seq_cst,
                                       std::memory_order_relaxed))
        continue;
      slot.value = value;
      slot.sequence.store(position + 1, std::memory_order_release);
      return true;
    }
  }

  // False if the ring is empty, or its next item is still being pushed.
  bool Pop(T* value) {
    uint64_t position = head_.load(std::memory_order_relaxed);
    while (true) {
      Slot& slot = slots_[position & mask_];
      const auto lead =
          static_cast<int64_t>(slot.sequence.load(std::memory_order_acquire) - (position + 1));
      if (lead < 0) return false;
      if (lead > 0) {
        position = head_.load(std::memory_order_relaxed);
        continue;
      }
      if (!head_.compare_exchange_weak(position, position + 1, std::memory_order_relaxed)) continue;

      *value = slot.value;
      slot.sequence.store(position + mask_ + 1, std::memory_order_release);
      return true;
    }
  }

  // Number of items pushed and not taken; on the only pushing thread never too small.
  uint32_t size() const {
    const uint64_t head = head_.load(std::memory_order_acquire);
    return static_cast<uint32_t>(tail_.load(std::memory_order_seq_cst) - head);
  }
  bool Empty() const { return size() == 0; }

 private:
  struct alignas(64) Slot {
    std::atomic<uint64_t> sequence{0};
    T value;
  };
  const uint64_t mask_;
  const std::unique_ptr<Slot[]> slots_;
  alignas(64) std::atomic<uint64_t> tail_{0};
  alignas(64) std::atomic<uint64_t> head_{0};
};

}  // namespace tidepool::memserver
