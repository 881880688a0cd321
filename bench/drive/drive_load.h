// A process that moves as many bytes to and from the drive as it is told, by memserver's own way of
// asking the system (nvme/io_queue.h), and does nothing else: what a busy drive costs a job beside
// it is the machine's.
//
// The wish lies in a page of a file that two processes map: WishDriveLoad for who wishes,
// RunDriveLoad for who does it.
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
