// PlaneSpacing: places the large planes of a chunk so that none starts a large power of two behind
// another (base/formats/plane_slack.h), and lists the pages that stay empty beside them.
//
// Serve loop. The empty pages are the job's, as the planes are. Only planes' places are kept across
// restarts: an adopted job's empty pages go back to the pool, and a layout that was made without
// them is as good.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "memserver/residency/pool/host_pool.h"

namespace tidepool::memserver {

// The smallest multiple of kApartBytes, at most `slack`, by which a plane at `begin` has to move so
// that it lies apart from those at `others`; `slack` where there is none.
uint64_t ShiftApart(uint64_t begin, uint64_t slack, std::span<const uint64_t> others);

class PlaneSpacing {
 public:
  // The planes that are placed from here on belong to another chunk.
  void NextChunk() { placed_.clear(); }
  // Where a plane lies in `run`, which is longer than it by `slack`; pages beside it are listed
  // where `lists_pages`.
  Extent Place(const Extent& run, uint64_t slack, bool lists_pages = true);

  // Pages beside the planes for which they are listed.
  std::span<const Extent> empty_pages() const { return empty_; }
  // They are the job's no longer.
  void Forget() { empty_.clear(); }

 private:
  std::vector<Extent> empty_;
  std::vector<uint64_t> placed_;  // addresses of the chunk's planes
};

}  // namespace tidepool::memserver
