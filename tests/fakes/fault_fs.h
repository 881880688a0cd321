// FaultFs: a file system of one file, mounted for this process alone, that fails as a simulated
// disk does (sim_disk.h): faults that pass through the kernel on their way.
//
// A child process answers the kernel (FUSE, spoken directly over /dev/fuse); it ends with this
// object, or with its parent. Mount needs the right to mount, in the system or in a user namespace
// of one's own, and /dev/fuse. One thread; make it before there are others.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/fakes/sim_disk.h"

namespace tidepool::nvme {

class FaultFs {
 public:
  struct Options {
    std::string path;  // an empty directory
    uint64_t file_bytes = 0;
    uint64_t seed = 1;
    std::vector<uint32_t> odds;  // by DiskFault; one request in so many
  };
  // Null where the system does not allow it; `why` says what and how.
  static std::unique_ptr<FaultFs> Mount(const Options& options, std::string* why);
  ~FaultFs();
  FaultFs(const FaultFs&) = delete;
  FaultFs& operator=(const FaultFs&) = delete;

  // The file, whose directory is the mounted one.
  std::string file() const { return path_ + "/states"; }
  // Nothing is answered until Wake.
  void Hang() const;
  void Wake() const;
  uint64_t faults() const { return shared_->faults.load(std::memory_order_acquire); }
  uint64_t faults(DiskFault fault) const {
    return shared_->by_fault[static_cast<size_t>(fault)].load(std::memory_order_acquire);
  }

  // Counted by the child.
  struct Shared {
    std::atomic<uint64_t> faults;
    std::atomic<uint64_t> by_fault[static_cast<size_t>(DiskFault::kCount)];
  };

 private:
  FaultFs(std::string path, Shared* shared, pid_t child)
      : path_(std::move(path)), shared_(shared), child_(child) {}

  const std::string path_;
  Shared* const shared_;
  const pid_t child_;
};

}  // namespace tidepool::nvme
