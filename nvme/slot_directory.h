// SlotDirectory: the files of one NVMe directory, safely opened, fenced and preallocated: the data
// file and two manifests.
//
// One thread, at start; it blocks (it waits for the lock of a server that has just died). It only
// holds the descriptors and the lock until it is destroyed. Invariants: no symbolic link was
// followed; directory and files are ours and nobody else can open them; the files are locked, so no
// other memserver uses them, and every write of a dead one has landed; all its space is allocated.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "nvme/drive_profile.h"
#include "nvme/manifest.h"

namespace tidepool::nvme {

inline constexpr const char* kDataFileName = "states";
inline constexpr const char* kManifestFileNames[2] = {"manifest.0", "manifest.1"};
inline constexpr const char* kOwnerFileName = "owner";

// The directory to open, its size, and the time limits for former owners.
struct SlotDirectoryOptions {
  std::string path;  // absolute and existing
  // Size of the data file; a larger one keeps its size while it holds jobs.
  uint64_t bytes = 0;
  int64_t ghost_wait_ns = 60 * kNsPerSecond;  // for the writes of a dead server
  int64_t owner_wait_ns = 3 * kNsPerSecond;   // for a server that is ending now
};

class SlotDirectory {
 public:
  // Opens and locks the directory. Errors: kNvmeDirectoryBad (links, owner, mode, not a directory,
  // not writable), kNvmeInUse (by whom), kNvmeSpaceShort, kNvmeIoFailed, kHostMemoryShort (no
  // descriptor for it).
  static Result<SlotDirectory> Open(const SlotDirectoryOptions& options, Clock* clock);

  const std::string& path() const { return path_; }
  // The open files, owned by the directory.
  int data_fd() const { return data_.get(); }
  int manifest_fd(uint32_t i) const { return manifests_[i].get(); }
  // The newest whole manifest; a new one if the directory had none.
  const Manifest& manifest() const { return manifest_; }
  // False if the file system supports no direct transfers: they go through the page cache.
  bool direct() const { return direct_; }
  // The measured I/O parameters of its drive, if any.
  const FoundProfile& profile() const { return profile_; }
  // True if it was empty: a new directory, or one over which no drive is mounted.
  bool was_empty() const { return was_empty_; }
  // Damage that was found and ignored; empty if there was none.
  const std::string& damage() const { return damage_; }

 private:
  Status OpenFiles(const SlotDirectoryOptions& options, Clock* clock);
  Status Fence(int fd, const SlotDirectoryOptions& options, Clock* clock) const;
  Status ReadManifests(const SlotDirectoryOptions& options);
  Status Preallocate();
  Status WriteFirstManifests();

  std::string path_;
  UniqueFd directory_, data_, manifests_[2];
  Manifest manifest_;
  FoundProfile profile_;
  bool direct_ = true;
  bool fresh_ = false;  // the manifests are new
  bool was_empty_ = false;
  std::string damage_;
};

}  // namespace tidepool::nvme
