#include "trainer/cache/unit_routing.h"

#include <algorithm>

namespace tidepool::trainer {

UnitRouting::UnitRouting(const ChunkLayout& layout)
    : layout_(layout),
      needs_(layout.chunks.size(), Need::kUnknown),
      quiet_(layout.chunks.size(), false) {
  const uint32_t units = layout.Units();
  if (units > 0) chunks_of_unit_.resize(units + 1);
  told_last_.assign(chunks_of_unit_.size(), false);

  for (ChunkId chunk = 0; chunk < layout.chunks.size(); ++chunk) {
    const uint32_t unit = layout.chunks[chunk].unit;
    unit_of_chunk_.push_back(unit);
    if (unit != 0) chunks_of_unit_[unit].push_back(chunk);
  }
}

std::span<const ChunkId> UnitRouting::ChunksOf(uint32_t unit) const {
  if (unit >= chunks_of_unit_.size()) return {};
  return chunks_of_unit_[unit];
}

void UnitRouting::Forget() {
  std::fill(needs_.begin(), needs_.end(), Need::kUnknown);
  told_last_.assign(told_last_.size(), false);
}

void UnitRouting::Tell(const UnitUses& uses) {
  told_last_.assign(told_last_.size(), false);
  for (size_t i = 0; i < uses.units.size(); ++i) {
    const std::span<const ChunkId> chunks = ChunksOf(uses.units[i]);
    for (const ChunkId chunk : chunks) {
      needs_[chunk] = (*uses.used)[i] ? Need::kUsed : Need::kIdle;
      quiet_[chunk] = !(*uses.used_anywhere)[i];
    }
    if (!chunks.empty()) told_last_[uses.units[i]] = true;
  }
}

bool UnitRouting::MayBeLeftOut(ChunkId chunk) const {
  if (!OfUnit(chunk)) return false;
  const bool known = needs_[chunk] == Need::kUsed &&
                     (!layout_.chunks[chunk].frozen || told_last_[unit_of_chunk_[chunk]]);
  return !known;
}

namespace {

// True if the moment is about chunks for which `is` holds, and about nothing else.
template <typename Is>
bool IsAbout(const Moment& moment, const Is& is) {
  if (moment.kind != MomentKind::kUse) return moment.chunks.empty() && is(moment.subject);
  return !moment.chunks.empty() && std::all_of(moment.chunks.begin(), moment.chunks.end(), is);
}

}  // namespace

bool UnitRouting::IsQuiet(const Moment& moment) const {
  return IsAbout(
      moment, [this](ChunkId chunk) { return needs_[chunk] != Need::kUnknown && quiet_[chunk]; });
}

bool UnitRouting::IsOf(const Moment& moment, uint32_t unit) const {
  return IsAbout(moment, [&](ChunkId chunk) {
    return needs_[chunk] == Need::kIdle && unit_of_chunk_[chunk] == unit;
  });
}

}  // namespace tidepool::trainer
