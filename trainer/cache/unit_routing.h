// UnitRouting: which units of the model (its experts) the present micro-batch uses, as far as the
// model has said, and what the pass may therefore leave out.
//
// One thread (the trainer's main thread). It decides nothing and moves nothing. All ranks of a
// unit's data group say the same at the same place of their order, so the leaving out is the same
// on all of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "trainer/layout/chunk_layout.h"
#include "trainer/plan/access_schedule.h"

namespace tidepool::trainer {

// What a micro-batch uses of the units of one place of the model, such as the experts of a block.
struct UnitUses {
  std::span<const uint32_t> units;  // of this rank
  // used[i]: units[i] is used, on all ranks that have it.
  const std::vector<bool>* used = nullptr;
  // Whether any rank uses its i-th unit of this place; the same on all ranks. Ranks that have other
  // units share chunks besides, and decide alike about them by this.
  const std::vector<bool>* used_anywhere = nullptr;
};

class UnitRouting {
 public:
  explicit UnitRouting(const ChunkLayout& layout);

  // True if the layout has chunks of units.
  bool any() const { return !chunks_of_unit_.empty(); }
  // The chunks that hold the unit's parameters, all of them; empty if it has none of its own.
  std::span<const ChunkId> ChunksOf(uint32_t unit) const;
  bool OfUnit(ChunkId chunk) const { return unit_of_chunk_[chunk] != 0; }

  // Begins a pass, or a micro-batch: nothing is known.
  void Forget();
  // The gradients of the chunk have left: what was said was about the micro-batch before.
  void Forget(ChunkId chunk) { needs_[chunk] = Need::kUnknown; }
  // The units of one place of the model.
  void Tell(const UnitUses& uses);

  // True for a chunk that is not fetched before it is known to be used. A frozen chunk, which has
  // no gradients that leave, counts as known only for the units that were told last.
  bool MayBeLeftOut(ChunkId chunk) const;
  // True if it is unknown on every rank whether its chunk at this place is used, or known that it
  // is not: a decision about what all ranks do may depend on it.
  bool IsQuiet(ChunkId chunk) const {
    return OfUnit(chunk) && (needs_[chunk] == Need::kUnknown || quiet_[chunk]);
  }
  // True for a moment that is about chunks alone that no rank uses; below, about idle chunks of
  // this unit.
  bool IsQuiet(const Moment& moment) const;
  bool IsOf(const Moment& moment, uint32_t unit) const;

 private:
  enum class Need : uint8_t { kUnknown, kUsed, kIdle };

  const ChunkLayout& layout_;
  std::vector<uint32_t> unit_of_chunk_;               // by ChunkId
  std::vector<std::vector<ChunkId>> chunks_of_unit_;  // by unit; empty without units
  std::vector<Need> needs_;                           // by ChunkId
  std::vector<bool> quiet_;                           // by ChunkId: known, and not used anywhere
  std::vector<bool> told_last_;                       // by unit
};

}  // namespace tidepool::trainer
