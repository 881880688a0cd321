#include "memserver/residency/weight_window.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tidepool::memserver {

WeightWindow::WeightWindow(ChunkId first, uint64_t slot_bytes, std::span<std::byte* const> areas,
                           WeightUses uses)
    : first_(first), slot_bytes_(slot_bytes), uses_(std::move(uses)) {
  for (std::byte* const area : areas) {
    slots_.push_back({.data = area});
    slots_.push_back({.data = area + slot_bytes});
  }
  asked_.reserve(slots_.size() * uses_.ranks());
}

uint32_t WeightWindow::SlotOf(ChunkId chunk) const {
  const auto it = std::find_if(slots_.begin(), slots_.end(),
                               [chunk](const Slot& slot) { return slot.chunk == chunk; });
  return it == slots_.end() ? kNone : static_cast<uint32_t>(it - slots_.begin());
}

void WeightWindow::Give(uint32_t slot, ChunkId chunk, bool filling) {
  TP_CHECK(SlotOf(chunk) == kNone && !slots_[slot].filling,
           "a chunk has one slot, and what is being filled stays");
  slots_[slot].chunk = chunk;
  slots_[slot].filling = filling;
  Touch(slot);
}

void WeightWindow::EndFill(uint32_t slot, bool holds) {
  TP_CHECK(slots_[slot].filling, "a fill ends once");
  slots_[slot].filling = false;
  if (!holds) slots_[slot].chunk = shm::kNoSpill;
}

bool WeightWindow::IsAsked(ChunkId chunk) const {
  return std::find(asked_.begin(), asked_.end(), chunk) != asked_.end();
}

}  // namespace tidepool::memserver
