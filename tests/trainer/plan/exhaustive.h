// Exhaustive: the fewest fetches that any eviction policy can reach, by trying all of them; for
// small schedules.
#pragma once

#include <algorithm>
#include <bit>
#include <compare>
#include <cstdint>
#include <map>

#include "trainer/plan/access_schedule.h"

namespace tidepool::trainer {

// All chunks need a block; at most 32 chunks. States that were seen are remembered.
class Exhaustive {
 public:
  Exhaustive(const AccessSchedule& schedule, uint32_t blocks)
      : schedule_(schedule), blocks_(blocks) {}

  static constexpr uint32_t kImpossible = 1u << 20;

  uint32_t Fewest() { return From(0, 0, 0); }

 private:
  struct Key {
    uint64_t position;
    uint32_t present, pinned;
    auto operator<=>(const Key&) const = default;
  };

  uint32_t From(uint64_t position, uint32_t present, uint32_t pinned) {
    if (position == schedule_.moments.size()) return 0;
    const Key key{position, present, pinned};
    if (const auto known = known_.find(key); known != known_.end()) return known->second;
    const Moment& moment = schedule_.moments[position];
    uint32_t needed = 0;
    for (const ChunkId chunk : moment.chunks) needed |= 1u << chunk;
    const uint32_t subject = moment.kind == MomentKind::kUse ? 0 : 1u << moment.subject;
    const uint32_t after = moment.kind == MomentKind::kSubmit ? subject : 0;
    const uint32_t occupied = needed | (moment.kind == MomentKind::kSubmit ? 0 : subject);
    const uint32_t fetched = needed | (moment.kind == MomentKind::kGradient ? subject : 0);
    uint32_t best = kImpossible;
    // Every set of present chunks may be given up, as long as nothing pinned or needed is among
    // them.
    const uint32_t may_go = present & ~pinned & ~occupied;
    for (uint32_t gone = may_go;; gone = (gone - 1) & may_go) {
      const uint32_t now = (present & ~gone) | occupied;
      if (static_cast<uint32_t>(std::popcount(now)) <= blocks_) {
        const uint32_t pins = (pinned | subject) & ~after;
        const uint32_t rest = From(position + 1, now & ~after, pins);
        best = std::min(best, rest + static_cast<uint32_t>(std::popcount(fetched & ~present)));
      }
      if (gone == 0) break;
    }
    return known_[key] = best;
  }

  const AccessSchedule& schedule_;
  uint32_t blocks_;
  std::map<Key, uint32_t> known_;
};

}  // namespace tidepool::trainer
