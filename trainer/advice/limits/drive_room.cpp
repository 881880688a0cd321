#include "trainer/advice/limits/drive_room.h"

#include <linux/magic.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

namespace tidepool::trainer {
namespace {

void Look(const std::string& path, DriveRoom* largest) {
  struct statfs about {};
  if (access(path.c_str(), W_OK) != 0 || statfs(path.c_str(), &about) != 0) return;
  if (about.f_type == TMPFS_MAGIC || about.f_type == RAMFS_MAGIC) return;
  const uint64_t free =
      static_cast<uint64_t>(about.f_bavail) * static_cast<uint64_t>(about.f_bsize);
  if (free > largest->bytes_free) *largest = {path, free};
}

}  // namespace

DriveRoom LargestDrive(const std::string& mounts) {
  DriveRoom largest;
  Look(".", &largest);
  std::ifstream file(mounts);

  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string device, place;
    words >> device >> place;
    // Spaces in names are escaped; such a place is left out.
    if (device.starts_with("/dev/") && place.find('\\') == std::string::npos) Look(place, &largest);
  }
  return largest;
}

}  // namespace tidepool::trainer
