#include "trainer/plan/access_schedule.h"

#include <algorithm>

namespace tidepool::trainer {

NextUses::NextUses(const AccessSchedule& schedule, uint32_t chunk_count) : events_(chunk_count) {
  for (uint64_t position = 0; position < schedule.moments.size(); ++position) {
    const Moment& moment = schedule.moments[position];
    for (const ChunkId chunk : moment.chunks) events_[chunk].push_back({position, true});
    if (moment.kind != MomentKind::kUse)
      events_[moment.subject].push_back({position, moment.kind == MomentKind::kGradient});
  }
}

uint64_t NextUses::After(ChunkId chunk, uint64_t position) const {
  const auto& events = events_[chunk];
  // If a borrow or a submission comes first, the block's present content is not used again.
  const auto next = std::upper_bound(events.begin(), events.end(), position,
                                     [](uint64_t at, const Event& e) { return at < e.position; });
  return next != events.end() && next->needed ? next->position : kNeverUsed;
}

uint64_t NextUses::First(ChunkId chunk) const {
  const auto& events = events_[chunk];
  return !events.empty() && events.front().needed ? events.front().position : kNeverUsed;
}

uint64_t NextUses::EndOfUseBefore(ChunkId chunk, uint64_t position) const {
  const auto& events = events_[chunk];
  const auto next = std::lower_bound(events.begin(), events.end(), position,
                                     [](const Event& e, uint64_t at) { return e.position < at; });
  return next == events.begin() ? 0 : std::prev(next)->position + 1;
}

std::vector<uint64_t> BlocksNeeded(const AccessSchedule& schedule,
                                   const std::vector<bool>& evictable) {
  std::vector<bool> gradient(evictable.size(), false);
  std::vector<uint64_t> needs;
  uint64_t gradients = 0;
  for (const Moment& moment : schedule.moments) {
    const bool counts = moment.kind != MomentKind::kUse && evictable[moment.subject];
    if (counts && !gradient[moment.subject]) {
      gradient[moment.subject] = true;
      ++gradients;
    }
    // An operator may use other parameters of a chunk that already holds gradients: count its block
    // once.
    uint64_t blocks = gradients;
    for (const ChunkId chunk : moment.chunks) blocks += evictable[chunk] && !gradient[chunk];
    needs.push_back(blocks);
    if (counts && moment.kind == MomentKind::kSubmit) {
      gradient[moment.subject] = false;
      --gradients;
    }
  }
  return needs;
}

uint64_t SmallestRcache(const AccessSchedule& schedule, const std::vector<bool>& evictable) {
  uint64_t peak = 0;
  for (const uint64_t blocks : BlocksNeeded(schedule, evictable)) peak = std::max(peak, blocks);
  return peak;
}

std::vector<ChunkId> FirstUseOrder(const AccessSchedule& schedule) {
  std::vector<ChunkId> order;
  std::vector<bool> seen;
  for (const Moment& moment : schedule.moments) {
    for (const ChunkId chunk : moment.chunks) {
      if (chunk >= seen.size()) seen.resize(chunk + 1, false);
      if (!seen[chunk]) order.push_back(chunk);
      seen[chunk] = true;
    }
  }
  return order;
}

std::vector<bool> EvictableMask(const ChunkLayout& layout) {
  std::vector<bool> mask;
  for (const ChunkPlace& chunk : layout.chunks) mask.push_back(!chunk.resident);
  return mask;
}

}  // namespace tidepool::trainer
