// MomentLanding: where moments land that are put into chunks whose states lie on NVMe or on a GPU,
// until the chunk is stored there with them.
//
// Serve loop; workers and streams read what From names until the chunk is stored. The memory is
// this process's own, beside the pool: it goes with it, and with a server that is killed (a job
// that had not all of its states then is given up, jobs/job_recovery.cpp). A rank has kChunksARank
// chunks here at most that it came to first, and waits with the next one: ranks put chunks in the
// order of their numbers, so the rank that is furthest behind never waits for others.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "base/ids.h"

namespace tidepool::memserver {

// Gives mapped memory back.
struct Unmap {
  uint64_t bytes = 0;
  void operator()(std::byte* memory) const;
};

class MomentLanding {
 public:
  static constexpr uint32_t kChunksARank = 2;
  static constexpr uint32_t kPlanes = 4;  // those of puts but the master, each a word an element
  // By plane, from shm::kPutMomentum on; null: nothing has come, all of it is zero.
  using Words = std::array<const uint32_t*, kPlanes>;

  // Where words of `plane` land from `element` on; null: the rank has to wait, for a chunk to be
  // stored (or for memory of the system).
  std::byte* Place(ChunkId chunk, uint64_t elements, Rank rank, uint32_t plane, uint64_t element);
  // What has landed of the chunk, from `element` on.
  Words From(ChunkId chunk, uint64_t element) const;
  // The chunk is stored: its memory goes back.
  void Leave(ChunkId chunk) { chunks_.erase(chunk); }

 private:
  struct Landed {
    Rank rank = 0;  // that came first
    std::array<std::unique_ptr<std::byte, Unmap>, kPlanes> planes;
  };

  std::map<ChunkId, Landed> chunks_;
};

}  // namespace tidepool::memserver
