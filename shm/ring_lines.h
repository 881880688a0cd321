// How one end of a ring writes and reads its slots, and how far ahead: what port.h does with every
// message, so all of it is inline.
//
// Any thread that owns the end. No errors: what a slot may hold is for port.h to judge.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "shm/channel_layout.h"
#include "shm/segment.h"
#include "shm/shared_load.h"

namespace tidepool::shm {

// The first client position of a batch is published at the latest after this many items.
inline constexpr uint64_t kPublishEvery = kRingEntries / 4;
// So many requests of a batch reach the server at once; more would leave it idle.
inline constexpr uint64_t kBatchMax = 16;
// Distance of the client's prefetch; measured, with bench_ring.
inline constexpr uint64_t kSlotsAhead = 32;

// The slot of the ring in which item number `position` lies.
inline RingSlot* SlotAt(const Segment& segment, uint64_t position) {
  return reinterpret_cast<RingSlot*>(segment.data() + kRingOffset) + position % kRingEntries;
}

// The words are atomics because the other process may write them at any time; relaxed, because the
// sequence orders an honest writer. Word by word from the shared line to the item and back, without
// a copy between: read in other widths, that one would have to wait for its stores.
template <typename T>
inline void LoadPayload(const RingSlot& slot, T* item) {
  static_assert(sizeof(T) == kPayloadWords * sizeof(uint64_t) && std::is_trivially_copyable_v<T>);
#pragma GCC unroll 7
  for (uint32_t i = 0; i < kPayloadWords; ++i) {
    const uint64_t word = SharedLoad(slot.words[i], std::memory_order_relaxed);
    std::memcpy(reinterpret_cast<std::byte*>(item) + i * sizeof word, &word, sizeof word);
  }
}

// The other way; the sequence is the caller's to write.
template <typename T>
inline void StorePayload(RingSlot* slot, const T& item) {
  static_assert(sizeof(T) == kPayloadWords * sizeof(uint64_t) && std::is_trivially_copyable_v<T>);
#pragma GCC unroll 7
  for (uint32_t i = 0; i < kPayloadWords; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, reinterpret_cast<const std::byte*>(&item) + i * sizeof word, sizeof word);
    slot->words[i].store(word, std::memory_order_relaxed);
  }
}

// Takes the line from the other side's cache before it is written: else each of its stores waits in
// turn. Where the CPU does not know the instruction, it does nothing.
inline void PrefetchForWrite([[maybe_unused]] const RingSlot* slot) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*slot));
#endif
}

}  // namespace tidepool::shm
