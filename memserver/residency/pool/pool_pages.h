// Pool pages: of what size the pages of the host pool are, on which NUMA nodes they lie, and how
// they come into being.
//
// Any thread; no state. Wishes about size and place are wishes: a system that grants them not still
// serves, only slower, and what it really gave is asked afterwards (HugePageBytes, NodesOfPages).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "base/units.h"

namespace tidepool::memserver {

// A memfd that can be sealed; with `reserved`, of the huge pages that the administrator has set
// aside (vm.nr_hugepages), which a mapping then takes or fails. Invalid when the system refuses.
UniqueFd CreatePoolFile(bool reserved);
// Huge pages set aside and free.
uint64_t ReservedHugeBytes();

// The pages of this mapping, which are not there yet, will lie on `nodes`: on the one where it has
// room, else page by page in turn.
// Errors: kMemoryMapFailed (the system does not allow it, or has no such node; pages then lie
// anywhere).
Status BindPages(std::byte* data, uint64_t bytes, std::span<const uint32_t> nodes);
// Makes every page present and writable. Errors: kMemoryMapFailed.
Status TouchPages(std::byte* data, uint64_t bytes);

// Bytes of mappings that start inside the range and that the system maps with 2 MiB pages. Pages
// that were never used count for nothing.
uint64_t HugePageBytes(const std::byte* data, uint64_t bytes);

// Bytes on one NUMA node.
struct NodeShare {
  uint32_t node = 0;
  uint64_t bytes = 0;
};
// Where the pages lie, estimated from 64 of them, which are made present; ascending. Empty where
// the system does not tell.
std::vector<NodeShare> NodesOfPages(std::byte* data, uint64_t bytes);

}  // namespace tidepool::memserver
