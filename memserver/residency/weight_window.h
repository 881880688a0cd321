// WeightWindow: the slots of the host pool that hold weights of chunks whose weights are on NVMe
// alone (decision 027), and what is in each. A table: it moves no bytes.
//
// One thread (the serve loop). Kept memory does not record the contents of slots: a next server
// begins with an empty window, as the pieces on NVMe have everything. A slot is
//   free      of no chunk
//   filling   the weights of a chunk's present epoch are being read into it
//   held      it is the chunk's 16-bit plane: whole, or about to be written by the chunk's running
//             update
// Invariants:
//  1. a chunk has one slot at most, and it is the chunk's plane (ChunkPlanes::param16) exactly
//     while it is held;
//  2. a slot changes its chunk only when nobody copies out of it and no update writes to it; such a
//     copy or update needs no other slot to end;
//  3. weights that a parked request names, and that could be sent at once, are not evicted
//     (`asked`): they are copied, and then may go;
//  4. so a chunk that is asked for eventually gets a slot. Copies end by themselves; an update ends
//     by the drive and the workers; a fill ends by the drive, or the job does; and what is asked
//     for and held begins its copy in the next turn. None of these waits for a slot.
// While weights arrive, two slots are an area in which the fp32 weights of one chunk land
// (LandingOf).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "memserver/residency/weight_uses.h"
#include "shm/spec/state_footprint.h"

namespace tidepool::memserver {

class WeightWindow {
 public:
  struct Slot {
    std::byte* data = nullptr;
    ChunkId chunk = shm::kNoSpill;  // kNoSpill: free
    bool filling = false;
    uint64_t used = 0;  // when it was last wanted, in calls of Touch
  };
  static constexpr uint32_t kNone = ~uint32_t{0};

  WeightWindow() = default;
  // `areas`: where they begin, each of two slots.
  WeightWindow(ChunkId first, uint64_t slot_bytes, std::span<std::byte* const> areas,
               WeightUses uses);

  // True if the job has a window.
  bool any() const { return !slots_.empty(); }
  // True if the chunk's weights are on NVMe alone.
  bool Covers(ChunkId chunk) const { return chunk >= first_; }
  ChunkId first() const { return first_; }
  uint32_t areas() const { return static_cast<uint32_t>(slots_.size() / 2); }
  uint64_t slot_bytes() const { return slot_bytes_; }
  std::span<const Slot> slots() const { return slots_; }
  uint32_t SlotOf(ChunkId chunk) const;  // kNone: it has none

  // Where fp32 weights of the chunk land; the chunk `areas` further on uses the same area.
  std::byte* LandingOf(ChunkId chunk) const {
    return slots_[2 * ((chunk - first_) % areas())].data;
  }
  // The chunk that must have left that area before; kNoSpill: none.
  ChunkId LandsBehind(ChunkId chunk) const {
    return chunk - first_ < areas() ? shm::kNoSpill : chunk - areas();
  }

  // The slot to reuse: a free one, else, among those whose chunk `may_go`, the one with the
  // farthest next use, provided that it is farther than `until_next` (0 for a chunk that is asked
  // for). kNone: there is none.
  template <typename MayGo>
  uint32_t FindRoom(uint64_t until_next, MayGo may_go) const {
    uint32_t best = kNone;
    uint64_t best_until = 0;
    for (uint32_t i = 0; i < slots_.size(); ++i) {
      const Slot& slot = slots_[i];
      if (slot.chunk == shm::kNoSpill) return i;
      if (slot.filling || !may_go(slot.chunk)) continue;
      const uint64_t until = uses_.UntilNext(slot.chunk);
      if (until_next > 0 && until <= until_next) continue;

      const bool farther = best == kNone || until > best_until ||
                           (until == best_until && slot.used < slots_[best].used);
      if (!farther) continue;
      best = i;
      best_until = until;
    }
    return best;
  }
  // Gives the slot to the chunk; the former chunk is out of the window. Requires that it may go.
  void Give(uint32_t slot, ChunkId chunk, bool filling);
  // The fill has ended; false: its bytes are of a past epoch, and the slot is free.
  void EndFill(uint32_t slot, bool holds);
  void Touch(uint32_t slot) { slots_[slot].used = ++touches_; }

  WeightUses& uses() { return uses_; }
  const WeightUses& uses() const { return uses_; }
  // Chunks that parked requests name and that have their versions, in serving order; set in every
  // turn.
  std::vector<ChunkId>& asked() { return asked_; }
  bool IsAsked(ChunkId chunk) const;
  uint64_t fills = 0;       // of whole chunks, since the job began
  uint64_t bytes_read = 0;  // from NVMe for them

 private:
  ChunkId first_ = shm::kNoSpill;
  uint64_t slot_bytes_ = 0;
  std::vector<Slot> slots_;
  WeightUses uses_;
  std::vector<ChunkId> asked_;
  uint64_t touches_ = 0;
};

}  // namespace tidepool::memserver
