// DriveLoad: a process that moves as many bytes to and from a drive as it is told, through
// memserver's own I/O queue (nvme/io_queue.h), and does nothing else. What it costs a job beside it
// is what the machine itself takes.
//
// The wish lies in a page of a file that two processes map: one calls WishDriveLoad, the other one
// RunDriveLoad.
#pragma once

#include <cstdint>
#include <string>

namespace tidepool::bench {

struct DriveLoad {  // bytes a second
  uint64_t read = 0, written = 0;
};

// In `directory`, for the process that runs there or will. Ends the program when no file can be
// made.
void WishDriveLoad(const std::string& directory, const DriveLoad& load);
// Never returns; nothing is moved while nothing is wished. Takes 64 MiB of the drive.
[[noreturn]] void RunDriveLoad(const std::string& directory);

}  // namespace tidepool::bench
