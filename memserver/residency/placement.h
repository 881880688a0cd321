// PlaceStates: which chunks of a new job keep their states on the host and which spill to NVMe, and
// into which directory; and, where all that is not enough, whose 16-bit weights are there alone.
//
// A pure function, any thread. A placement is exact: host_bytes and nvme_bytes are what the job
// takes, to the byte, and all it ever takes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "shm/spec/state_footprint.h"

namespace tidepool::memserver {

// Where states may lie (--states-on).
enum class StatesOn {
  kAuto,  // the host, and NVMe for the chunks that do not fit there
  kHost,
  kNvme,  // all that may spill
};

inline constexpr uint32_t kNvmeDirectoriesMax = 16;
// Among several directories one is chosen for each stripe of consecutive chunks; a job with more
// chunks than this has stripes of several.
inline constexpr uint64_t kStripesMax = 8192;

// What the job may take.
struct Space {
  uint64_t pool_free = 0;
  std::vector<uint64_t> nvme_free;  // by directory: the largest range that a job can get
};

// Where the states of one job lie.
struct Placement {
  // The first chunks stay: they are used, and so updated, first.
  ChunkId first_spilled = shm::kNoSpill;
  std::vector<uint8_t> directories;  // of the spilled chunks, from first_spilled on
  uint64_t host_bytes = 0;
  std::vector<uint64_t> nvme_bytes;  // by directory
  shm::WeightSpill weights;          // that are on NVMe alone

  // Whether chunks spill, which, and where to.
  bool spills() const { return first_spilled != shm::kNoSpill; }
  bool IsSpilled(ChunkId chunk) const { return chunk >= first_spilled; }
  bool IsWindowed(ChunkId chunk) const { return chunk >= weights.first; }
  uint8_t DirectoryOf(ChunkId chunk) const { return directories[chunk - first_spilled]; }
  uint64_t nvme_total() const;
};

// Where the states of the first chunks of a job go that were on the host.
struct MovePlan {
  std::vector<uint8_t> directories;  // by chunk
  std::vector<uint64_t> nvme_bytes;  // by directory
};
// Nothing when there is no room. `chunks`: how many of the first.
std::optional<MovePlan> PlanMove(const shm::JobSpec& spec, ChunkId chunks,
                                 const std::vector<uint64_t>& nvme_free);
// What the pool has back when the states of the chunks before `on_host` have moved: all then lie on
// NVMe.
uint64_t MovableBytes(const shm::JobSpec& spec, ChunkId on_host);

// The first chunk that spills; kNoSpill where none has to, or may.
ChunkId FirstSpilledOf(const shm::JobSpec& spec, StatesOn states_on, const Space& space);
// Whether host_bytes fit is for AdmitJob to say. Errors: kNvmeFull.
Result<Placement> PlaceStates(const shm::JobSpec& spec, StatesOn states_on, const Space& space);

}  // namespace tidepool::memserver
