// OpenNvmeTier: the NVMe directories that memserver was given, opened, and the tier over them.
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

// A directory that memserver was given, and how many bytes it may have there.
struct NvmeDirectory {
  std::string path;
  uint64_t bytes = 0;
};

inline constexpr int64_t kDeadlinesMax = 10;
inline constexpr uint32_t kBlockBytesDefault = kMiB, kDepthDefault = 64;

// The directories, and how they are read and written.
struct NvmeOptions {
  std::vector<NvmeDirectory> directories;  // none: no NVMe tier
  bool allow_uring = true;
  // Bytes of one read or write; 0: as the directories' profiles say, else kBlockBytesDefault.
  uint32_t block_bytes = 0;
  // Blocks in flight at each drive; 0: likewise, else kDepthDefault.
  uint32_t depth = 0;
  // Time for an answer; the jobs that wait for it end after kDeadlinesMax of them.
  int64_t deadline_ns = 30 * kNsPerSecond;
};

// In order of construction: the ring is destroyed before the memory that it reads into, and the
// locks last.
struct NvmeTier {
  // By directory: why it is absent; ok where it is there. An absent one takes nothing; jobs with
  // states there wait for another server.
  std::vector<Status> absent;
  std::vector<nvme::SlotDirectory> directories;  // without descriptors where it could not be opened
  nvme::PageMemory staging;
  std::unique_ptr<nvme::IoQueue> queue;
  std::unique_ptr<StateTier> tier;
};

// Null where no directory was given. A directory that is gone, or not ours any more
// (kNvmeDirectoryBad), or that held nothing, is noted; the former is a reason not to start with new
// memory (WhyNotNew). Errors: the others of SlotDirectory::Open, kMemoryMapFailed.
Result<std::unique_ptr<NvmeTier>> OpenNvmeTier(const NvmeOptions& options, Clock* clock);
// The first directory that could not be opened; ok where all could, also where `tier` is null.
Status WhyNotNew(const NvmeTier* tier);

}  // namespace tidepool::memserver
