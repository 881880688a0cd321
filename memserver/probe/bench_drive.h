// BenchDrive: `memserver bench nvme DIR`: how fast pieces of states are written to and read from
// the drive of a directory, by size and number of blocks in flight, and which of them to use.
//
// One thread, and those of the queue; takes about 15 s, and 512 MiB of the directory meanwhile.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace tidepool::memserver {

// What to measure.
struct BenchDriveOptions {
  std::string directory;
  bool allow_uring = true;
  bool json = false;
  int64_t run_ns = 250'000'000;  // per direction, block size and depth
};

// Returns a table for people, or one JSON object. Writes the best pair to the directory, as its
// profile (nvme/drive_profile.h). Errors: those of SlotDirectory::Open and WriteProfile,
// kMemoryMapFailed, kNvmeIoFailed.
Result<std::string> BenchDrive(const BenchDriveOptions& options, Clock* clock);

}  // namespace tidepool::memserver
