// ExtentRuns: operations on lists of a job's extents: cutting at a byte, and taking pages out.
//
// Pure functions, any thread. Their cost is linear in the lists (at most kRunsMax).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "memserver/residency/pool/host_pool.h"

namespace tidepool::memserver {

// Splits the list `bytes` behind the beginning of the run `first`; the run that holds the border
// becomes two. Returns the index of the run that begins there.
size_t DivideRuns(std::vector<Extent>* runs, size_t first, uint64_t bytes);

// The runs without these pages, each of which lies inside one of them.
std::vector<Extent> RunsWithout(std::span<const Extent> runs, std::span<const Extent> pages);

}  // namespace tidepool::memserver
