// PlaneSpacing: places the large planes of a chunk so that none starts a large power of two behind
// another (base/formats/plane_slack.h), and owns the pages that stay empty beside them.
//
// Serve loop. The empty pages count as the job's until Release. Only planes' places are kept across
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
  explicit PlaneSpacing(HostPool* pool) : pool_(pool) {}
  ~PlaneSpacing() { Release(); }
  PlaneSpacing(const PlaneSpacing&) = delete;
  PlaneSpacing& operator=(const PlaneSpacing&) = delete;

  // The planes that are taken from here on belong to another chunk.
  void NextChunk() { placed_.clear(); }
  // Appends an extent of `bytes`, out of a run of `bytes` + `slack`; false, and nothing changes,
  // where the pool has none.
  bool Take(uint64_t bytes, uint64_t slack, std::vector<Extent>* extents);

  // Empty pages that this holds.
  uint64_t bytes() const;
  std::span<const Extent> empty_pages() const { return empty_; }
  // They go back to the pool.
  void Release();

 private:
  HostPool* const pool_;
  std::vector<Extent> empty_;
  std::vector<uint64_t> placed_;  // addresses of the chunk's planes
};

}  // namespace tidepool::memserver
