// Pool pages: the size of the host pool's pages, their NUMA nodes, and making them present.
//
// Any thread; no state. Page size and NUMA placement are requests: a system that does not grant
// them still serves, only slower, and the result is queried afterwards (HugePageBytes,
// NodesOfPages).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "base/units.h"

namespace tidepool::memserver {

// Creates a memfd that can be sealed; with `reserved`, of the huge pages that the administrator has
// reserved (vm.nr_hugepages), which a mapping then takes or fails. Invalid if the system refuses.
UniqueFd CreatePoolFile(bool reserved);
// Bytes of reserved huge pages that are free.
uint64_t ReservedHugeBytes();

// Binds the pages of this mapping, which are not present yet, to `nodes`: to the one if there is
// room, else interleaved page by page.
// Errors: kMemoryMapFailed (the system does not allow it, or has no such node; pages then lie
// anywhere).
Status BindPages(std::byte* data, uint64_t bytes, std::span<const uint32_t> nodes);
// Makes every page present and writable. Errors: kMemoryMapFailed.
Status TouchPages(std::byte* data, uint64_t bytes);

// Bytes of mappings that start inside the range and that the system maps with 2 MiB pages. Pages
// that were never used do not count.
uint64_t HugePageBytes(const std::byte* data, uint64_t bytes);

// Bytes on one NUMA node.
struct NodeShare {
  uint32_t node = 0;
  uint64_t bytes = 0;
};
// The NUMA nodes of the pages, estimated from 64 samples, which are made present; ascending. Empty
// if the system does not tell.
std::vector<NodeShare> NodesOfPages(std::byte* data, uint64_t bytes);

}  // namespace tidepool::memserver
