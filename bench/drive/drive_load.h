// DriveLoad: a process that does nothing but move a requested number of bytes per second to and
// from a drive, through memserver's own I/O queue (nvme/io_queue.h). What it costs a job beside it
// is the machine's own cost.
//
// The request is in a page of a file that two processes map: one calls WishDriveLoad, the other
// RunDriveLoad.
#pragma once

#include <cstdint>
#include <string>

namespace tidepool::bench {

struct DriveLoad {  // bytes per second
  uint64_t read = 0, written = 0;
};

// Sets the load in `directory`, for the present or a later process there. Ends the program if the
// file cannot be created.
void WishDriveLoad(const std::string& directory, const DriveLoad& load);
// Never returns; idle while no load is requested. Takes 64 MiB of the drive.
[[noreturn]] void RunDriveLoad(const std::string& directory);

}  // namespace tidepool::bench
