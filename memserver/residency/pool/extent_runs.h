// ExtentRuns: lists of extents that a job holds, cut at some byte, or with pages taken out.
//
// Pure functions, any thread. They cost as much as the lists are long (kRunsMax).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "memserver/residency/pool/host_pool.h"

namespace tidepool::memserver {

// The index of the run that begins `bytes` behind the beginning of the run `first`; the one that
// holds the border becomes two.
size_t DivideRuns(std::vector<Extent>* runs, size_t first, uint64_t bytes);

// What is left of the runs without these pages, each of which lies inside one of them.
std::vector<Extent> RunsWithout(std::span<const Extent> runs, std::span<const Extent> pages);

}  // namespace tidepool::memserver
