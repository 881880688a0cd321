#include "memserver/traffic/rcache_map.h"

#include <algorithm>

#include "base/hot.h"

namespace tidepool::memserver {

RcacheMap::RcacheMap() {
  ranges_.reserve(kRangesMax);
  displaced_.reserve(kRangesMax);
}

TP_HOT std::span<const ChunkId> RcacheMap::Replace(uint64_t begin, uint64_t bytes,
                                                   std::optional<ChunkId> chunk) {
  displaced_.clear();
  const uint64_t end = begin + bytes;
  for (size_t i = 0; i < ranges_.size();) {
    if (ranges_[i].begin >= end || ranges_[i].end <= begin) {
      ++i;
      continue;
    }

    displaced_.push_back(ranges_[i].chunk);
    ranges_[i] = ranges_.back();
    ranges_.pop_back();
  }
  if (chunk.has_value()) {
    if (ranges_.size() == kRangesMax) {
      displaced_.push_back(ranges_.back().chunk);
      ranges_.pop_back();
    }
    ranges_.push_back({begin, end, *chunk});
  }
  // A chunk may lie in two places; it is gone when it has left both.
  std::erase_if(displaced_, [this](ChunkId each) { return Holds(each); });
  return displaced_;
}

TP_HOT bool RcacheMap::Holds(ChunkId chunk) const {
  return std::any_of(ranges_.rbegin(), ranges_.rend(),
                     [chunk](const HeldRange& range) { return range.chunk == chunk; });
}

}  // namespace tidepool::memserver
