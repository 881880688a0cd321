// PlaceStates: decides which chunks of a new job keep their states on the host and which spill to
// which NVMe directory; and, if that is not enough, whose 16-bit weights lie on NVMe alone.
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
  kAuto,  // the host, and NVMe for chunks that do not fit there
  kHost,
  kNvme,  // everything that may spill
};

inline constexpr uint32_t kNvmeDirectoriesMax = 16;
// A directory is chosen for each stripe of consecutive chunks; in a job with more chunks than this
// a stripe has several.
inline constexpr uint64_t kStripesMax = 8192;

// The space that the job may take.
struct Space {
  uint64_t pool_free = 0;
  std::vector<uint64_t> nvme_free;  // by directory: the largest range available to a job
};

// Where the states of one job lie.
struct Placement {
  // The first chunks stay, because they are used, and so updated, first.
  ChunkId first_spilled = shm::kNoSpill;
  std::vector<uint8_t> directories;  // of the spilled chunks, from first_spilled on
  uint64_t host_bytes = 0;
  std::vector<uint64_t> nvme_bytes;  // by directory
  shm::WeightSpill weights;          // those on NVMe alone

  // Whether chunks spill, which ones, and where to.
  bool spills() const { return first_spilled != shm::kNoSpill; }
  bool IsSpilled(ChunkId chunk) const { return chunk >= first_spilled; }
  bool IsWindowed(ChunkId chunk) const { return chunk >= weights.first; }
  uint8_t DirectoryOf(ChunkId chunk) const { return directories[chunk - first_spilled]; }
  uint64_t nvme_total() const;
};

// Where the states of the first chunks of a job, now on the host, are to go.
struct MovePlan {
  std::vector<uint8_t> directories;  // by chunk
  std::vector<uint64_t> nvme_bytes;  // by directory
};
// Nothing if there is no room. `chunks`: how many of the first.
std::optional<MovePlan> PlanMove(const shm::JobSpec& spec, ChunkId chunks,
                                 const std::vector<uint64_t>& nvme_free);
// Pool bytes that are free once the states of the chunks before `on_host` have moved: all then lie
// on NVMe.
uint64_t MovableBytes(const shm::JobSpec& spec, ChunkId on_host);

// The first chunk that spills; kNoSpill if none has to, or may.
ChunkId FirstSpilledOf(const shm::JobSpec& spec, StatesOn states_on, const Space& space);
// Places the states. AdmitJob checks whether host_bytes fit. Errors: kNvmeFull.
Result<Placement> PlaceStates(const shm::JobSpec& spec, StatesOn states_on, const Space& space);

}  // namespace tidepool::memserver
