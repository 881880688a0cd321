// MomentLanding: holds the put moments of chunks whose states lie on NVMe or on a GPU, until the
// chunk is stored there.
//
// Serve loop; workers and streams read the words of From until the chunk is stored. The memory is
// private to this process, outside the pool, and lost if the server is killed: a job whose states
// were incomplete then cannot be recovered (jobs/job_recovery.cpp). A chunk counts for the first
// rank that put into it. Each rank has at most kChunksARank chunks here, and waits with the next.
// Ranks put chunks in the order of their numbers, so the rank furthest behind never waits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "base/ids.h"

namespace tidepool::memserver {

// Deleter that unmaps `bytes` of mapped memory.
struct Unmap {
  uint64_t bytes = 0;
  void operator()(std::byte* memory) const;
};

class MomentLanding {
 public:
  static constexpr uint32_t kChunksARank = 2;
  static constexpr uint32_t kPlanes = 4;  // planes of puts except the master; a word per element
  // By plane, from shm::kPutMomentum on; null: nothing was put, and all values are zero.
  using Words = std::array<const uint32_t*, kPlanes>;

  // The place for words of `plane` from `element` on, valid until Leave. Null: the rank must wait
  // until a chunk is stored (or the system has memory).
  std::byte* Place(ChunkId chunk, uint64_t elements, Rank rank, uint32_t plane, uint64_t element);
  // The words of the chunk from `element` on, valid until Leave.
  Words From(ChunkId chunk, uint64_t element) const;
  // Call when the chunk is stored: frees its memory.
  void Leave(ChunkId chunk) { chunks_.erase(chunk); }

 private:
  struct Landed {
    Rank rank = 0;  // the first rank that put into the chunk
    std::array<std::unique_ptr<std::byte, Unmap>, kPlanes> planes;
  };

  std::map<ChunkId, Landed> chunks_;
};

}  // namespace tidepool::memserver
