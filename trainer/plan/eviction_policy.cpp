#include "trainer/plan/eviction_policy.h"

#include <algorithm>

namespace tidepool::trainer {

ChunkId RandomEviction::Victim(std::span<const ChunkId> candidates, uint64_t) {
  return candidates[random_.Below(candidates.size())];
}

// Positions restart with each pass; a use count does not.
void LruEviction::Used(ChunkId chunk, uint64_t) {
  last_use_[chunk] = ++uses_;
}

ChunkId LruEviction::Victim(std::span<const ChunkId> candidates, uint64_t) {
  return *std::min_element(candidates.begin(), candidates.end(),
                           [this](ChunkId a, ChunkId b) { return last_use_[a] < last_use_[b]; });
}

// What this pass does not use again may be used by the next one, in the same order.
BeladyEviction::Use BeladyEviction::NextUse(ChunkId chunk, uint64_t position) const {
  const uint64_t next = next_->After(chunk, position);
  return next == kNeverUsed ? Use{1, next_->First(chunk)} : Use{0, next};
}

ChunkId BeladyEviction::Victim(std::span<const ChunkId> candidates, uint64_t position) {
  ChunkId victim = candidates[0];
  Use farthest = NextUse(victim, position);
  for (const ChunkId chunk : candidates.subspan(1)) {
    const Use next = NextUse(chunk, position);
    if (next > farthest) {
      victim = chunk;
      farthest = next;
    }
  }
  return victim;
}

}  // namespace tidepool::trainer
