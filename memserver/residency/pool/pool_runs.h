// TakeRuns: takes what a job wants of the pool in as few runs as the free ranges allow, so that
// neither taking nor giving back goes through all of its chunks.
//
// A function over one allocator; the serve loop's thread. Parts (chunks) lie one behind the other:
// all that is left goes into the smallest free range that takes it; where there is none, as many
// whole parts as fit go into the largest. A part that fits nowhere as a whole is split, and its
// pieces go where they fit. The work is a logarithm for each run, and there are kRunsMax at most.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "memserver/residency/pool/extent_allocator.h"

namespace tidepool::memserver {

// Most runs of a job. Memory that is free in smaller holes than that is no room for it: taking it
// would keep everybody waiting, and so would giving it back.
inline constexpr size_t kRunsMax = 4096;

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
