// DriveRoom: the drive of this machine with the most free room that this user may write to.
//
// Any thread; asks the kernel only.
#pragma once

#include <cstdint>
#include <string>

namespace tidepool::trainer {

struct DriveRoom {
  std::string path;         // a directory on it; empty: unknown, or there is none
  uint64_t bytes_free = 0;  // for this user
};

// Looks at the mounted file systems of `mounts` (in the form of /proc/mounts) that lie on block
// devices, and at the working directory, unless it is in memory.
DriveRoom LargestDrive(const std::string& mounts = "/proc/self/mounts");

}  // namespace tidepool::trainer
