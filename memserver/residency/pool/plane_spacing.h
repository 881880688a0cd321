// PlaneSpacing: places the large planes of a chunk so that none starts a large power of two behind
// another (base/formats/plane_slack.h), and lists the pages that stay empty beside them.
//
// Serve loop. The empty pages belong to the job, as the planes do. Only the planes' places are kept
// across restarts: an adopted job's empty pages go back to the pool, and a layout made without them
// is equally good.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "memserver/residency/pool/host_pool.h"

namespace tidepool::memserver {

// The smallest multiple of kApartBytes, at most `slack`, by which a plane at `begin` has to move to
// lie apart from those at `others`; `slack` if there is none.
uint64_t ShiftApart(uint64_t begin, uint64_t slack, std::span<const uint64_t> others);

class PlaneSpacing {
 public:
  // The planes placed from here on belong to the next chunk.
  void NextChunk() { placed_.clear(); }
  // Places a plane in `run`, which is longer than the plane by `slack`. Lists the pages beside it
  // if `lists_pages`.
  Extent Place(const Extent& run, uint64_t slack, bool lists_pages = true);

  // The listed empty pages.
  std::span<const Extent> empty_pages() const { return empty_; }
  // The empty pages no longer belong to the job.
  void Forget() { empty_.clear(); }

 private:
  std::vector<Extent> empty_;
  std::vector<uint64_t> placed_;  // addresses of the chunk's planes
};

}  // namespace tidepool::memserver
