// BenchDrive: `memserver bench nvme DIR`: how fast pieces of states go to the drive of a directory
// and come back, by size and number of the blocks that are out at once, and which of them to use.
//
// One thread, and those of the queue; takes some 15 s, and 512 MiB of the directory for that time.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace tidepool::memserver {

// What is measured.
struct BenchDriveOptions {
  std::string directory;
  bool allow_uring = true;
  bool json = false;
  int64_t run_ns = 250'000'000;  // of one way, block size and depth
};

// A table for people, or one JSON object. The pair to use is written to the directory, as its
// profile (nvme/drive_profile.h). Errors: those of SlotDirectory::Open and WriteProfile,
// kMemoryMapFailed, kNvmeIoFailed.
Result<std::string> BenchDrive(const BenchDriveOptions& options, Clock* clock);

}  // namespace tidepool::memserver
