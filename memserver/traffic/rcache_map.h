// RcacheMap: which chunk each part of a rank's rCache holds, as far as the server's own copies
// tell. For the residency picture only.
//
// One thread (the serve loop). The trainer decides evictions and sends no message for them. The
// server does know that a block holds something else once another chunk is fetched into it, or once
// a gradient was made in it. Invariants: ranges do not overlap; at most kRangesMax are kept (beyond
// that, an arbitrary one is dropped); nothing is allocated after construction.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"

namespace tidepool::memserver {

class RcacheMap {
 public:
  static constexpr uint32_t kRangesMax = 1024;

  RcacheMap();
  // Bytes [begin, begin + bytes) hold (a shard of) `chunk` from now on, or no chunk. Returns the
  // chunks that are now nowhere in the map; the span is valid until the next call. Linear in the
  // number of ranges.
  std::span<const ChunkId> Replace(uint64_t begin, uint64_t bytes, std::optional<ChunkId> chunk);
  // Linear in the number of ranges, the newest first.
  bool Holds(ChunkId chunk) const;
  // One range; a chunk may have several.
  struct HeldRange {
    uint64_t begin, end;
    ChunkId chunk;
  };
  std::span<const HeldRange> ranges() const { return ranges_; }

 private:
  std::vector<HeldRange> ranges_;
  std::vector<ChunkId> displaced_;
};

}  // namespace tidepool::memserver
