// TakeRuns: takes what a job wants of the pool in as few runs as the free ranges allow, so that
// neither taking nor giving back goes through all of its chunks.
//
// A function over one allocator; the serve loop's thread. Parts (chunks) lie one behind the other:
// each free range, in order, gets as many whole parts as fit. Only parts for which no range was
// large enough are split, and go where their pieces fit: as many as the pool has holes at most,
// unless the holes are smaller than a part.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "memserver/residency/pool/extent_allocator.h"

namespace tidepool::memserver {

// What is wanted, in the order in which it is laid out in the runs. Sizes are whole pages.
struct RunWants {
  std::vector<uint64_t> singles;  // each in a run of its own, before the parts
  uint64_t parts = 0;
  // Bytes of this part and all behind it; 0 behind the last.
  std::function<uint64_t(uint64_t part)> bytes_from;
  // Appends the pieces of a part that does not fit anywhere as a whole.
  std::function<void(uint64_t part, std::vector<uint64_t>* pieces)> split;
};

// Appends the runs in that order; no part, or piece of a split one, lies in two of them. False, and
// nothing changes, when the allocator has none for it.
bool TakeRuns(const RunWants& wants, ExtentAllocator* from, std::vector<FreeRange>* runs);

}  // namespace tidepool::memserver
