// TakeRuns: takes a job's pool memory in as few runs as the free ranges allow, so that neither
// taking nor returning it iterates over all of its chunks.
//
// A function over one allocator; the serve loop's thread. Parts (chunks) are laid out
// consecutively: all remaining parts go into the smallest free range that takes them; if there is
// none, as many whole parts as fit go into the largest. A part that fits nowhere as a whole is
// split, and its pieces go where they fit. Each run costs O(log n), and there are at most kRunsMax.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "memserver/residency/pool/extent_allocator.h"

namespace tidepool::memserver {

// Most runs of a job. Memory that is free only in smaller holes is not used: taking it, and
// returning it, would take too long.
inline constexpr size_t kRunsMax = 4096;

// The wanted memory, in the order in which it is laid out in the runs. Sizes are whole pages.
struct RunWants {
  std::vector<uint64_t> singles;  // each in a run of its own, before the parts
  uint64_t parts = 0;
  // Bytes of this part and all behind it; 0 behind the last.
  std::function<uint64_t(uint64_t part)> bytes_from;
  // Appends the pieces of a part that does not fit anywhere as a whole.
  std::function<void(uint64_t part, std::vector<uint64_t>* pieces)> split;
};

// Appends the runs in that order; no part, or piece of a split one, spans two of them. False, and
// nothing changes, if the allocator has no room for it.
bool TakeRuns(const RunWants& wants, ExtentAllocator* from, std::vector<FreeRange>* runs);

}  // namespace tidepool::memserver
