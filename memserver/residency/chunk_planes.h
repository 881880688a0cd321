// ChunkPlanes and SpillPlace: where the states of one chunk lie, in the host pool and on NVMe.
//
// Plain values. The memory belongs to the host pool.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "memserver/residency/kept/job_records.h"

namespace tidepool::memserver {

// Planes in the form of the job's states (base/formats/optimizer.h); null if the job has no such
// plane, or the plane is not in the pool.
struct ChunkPlanes {
  std::byte* master = nullptr;  // fp32; the rest of a split master
  std::byte* momentum = nullptr;
  std::byte* variance = nullptr;
  // Null for fp32 jobs, whose master is fetched; the upper half of a split master.
  std::byte* param16 = nullptr;
  std::byte* gradient = nullptr;  // slot, elements of the gradient slot type

  // In the order in which their extents are listed (InOrder of shm::PlaneBytes).
  std::array<std::byte**, kPlanesMax> InOrder() {
    return {&master, &momentum, &variance, &param16, &gradient};
  }
};

// Where the states of a spilled chunk lie: slot e % 2 holds those of epoch e, the number of updates
// that they have seen.
struct SpillPlace {
  uint32_t directory = 0;
  uint64_t offset = 0;  // of slot 0 in the data file
  uint64_t slot_bytes = 0;
};

}  // namespace tidepool::memserver
