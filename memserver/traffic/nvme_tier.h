// OpenNvmeTier: opens memserver's NVMe directories and the tier over them.
//
// The main thread, before the serve loop exists; it blocks. Afterwards the tier belongs to the
// serve loop.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/units.h"
#include "memserver/traffic/state_tier.h"
#include "nvme/page_memory.h"
#include "nvme/slot_directory.h"

namespace tidepool::memserver {

// A directory given to memserver, and how many bytes it may use there.
struct NvmeDirectory {
  std::string path;
  uint64_t bytes = 0;
};

inline constexpr int64_t kDeadlinesMax = 10;
inline constexpr uint32_t kBlockBytesDefault = kMiB, kDepthDefault = 64;

// The directories, and the parameters of their I/O.
struct NvmeOptions {
  std::vector<NvmeDirectory> directories;  // none: no NVMe tier
  bool allow_uring = true;
  // Bytes of one read or write; 0: from the directories' profiles, else kBlockBytesDefault.
  uint32_t block_bytes = 0;
  // Blocks in flight at each drive; 0: from the profiles, else kDepthDefault.
  uint32_t depth = 0;
  // Time for an answer; jobs that wait for it end after kDeadlinesMax of them.
  int64_t deadline_ns = 30 * kNsPerSecond;
};

// In order of construction: the ring is destroyed before the memory that it reads into; the locks
// last.
struct NvmeTier {
  // By directory: why it is absent; ok if it is present. An absent one accepts nothing; jobs with
  // states there wait for another server.
  std::vector<Status> absent;
  std::vector<nvme::SlotDirectory> directories;  // without descriptors if it could not be opened
  nvme::PageMemory staging;
  std::unique_ptr<nvme::IoQueue> queue;
  std::unique_ptr<StateTier> tier;
};

// Null if no directory was given. A directory is noted if it is missing, or no longer ours
// (kNvmeDirectoryBad), or was empty; the first is a reason not to start with new memory
// (WhyNotNew). Errors: the others of SlotDirectory::Open, kMemoryMapFailed.
Result<std::unique_ptr<NvmeTier>> OpenNvmeTier(const NvmeOptions& options, Clock* clock);
// The error of the first directory that could not be opened; ok if all could, or if `tier` is null.
Status WhyNotNew(const NvmeTier* tier);

}  // namespace tidepool::memserver
