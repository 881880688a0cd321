// How one end of a ring reads and writes its slots, and how far ahead. port.h does this for every
// message, so all of it is inline.
//
// Any thread that owns the end. No errors: port.h judges the contents of slots.
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
// At most this many requests of a batch reach the server at once; more would leave it idle.
inline constexpr uint64_t kBatchMax = 16;
// Prefetch distance of the client; measured with bench_ring.
inline constexpr uint64_t kSlotsAhead = 32;

// The ring slot of item number `position`.
inline RingSlot* SlotAt(const Segment& segment, uint64_t position) {
  return reinterpret_cast<RingSlot*>(segment.data() + kRingOffset) + position % kRingEntries;
}

// The words are atomics because the other process may write them at any time; relaxed, because the
// sequence orders an honest writer. They are copied word by word between the shared line and the
// item, without a temporary copy: reading that one in other widths would stall on its stores.
template <typename T>
inline void LoadPayload(const RingSlot& slot, T* item) {
  static_assert(sizeof(T) == kPayloadWords * sizeof(uint64_t) && std::is_trivially_copyable_v<T>);
#pragma GCC unroll 7
  for (uint32_t i = 0; i < kPayloadWords; ++i) {
    const uint64_t word = SharedLoad(slot.words[i], std::memory_order_relaxed);
    std::memcpy(reinterpret_cast<std::byte*>(item) + i * sizeof word, &word, sizeof word);
  }
}

// The reverse; the caller writes the sequence.
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

// Takes the line from the other side's cache before it is written; otherwise each of its stores
// stalls in turn. Does nothing if the CPU lacks the instruction.
inline void PrefetchForWrite([[maybe_unused]] const RingSlot* slot) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*slot));
#endif
}

}  // namespace tidepool::shm
