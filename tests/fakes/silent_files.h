// SilentFiles: a file system of this process (FUSE) whose answers stop where a test says so: what a hostile or broken one does to whoever
// asks it. A thread that waits for such an answer cannot be ended, not by SIGKILL either, until this object is gone.
//
// One thread makes, asks and destroys it. The files may be opened by other processes alone: this one's own open, stat or close of them
// would wait for itself. Needs /dev/fuse and the right to mount; `missing()` says what is not there.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

#include "base/unique_fd.h"

namespace tidepool::testing {

class SilentFiles {
 public:
  // Mounts a directory of `owner` with one file in it, which can be opened and written.
  explicit SilentFiles(uint32_t owner = 0);
  // Whoever still waits for an answer gets an error.
  ~SilentFiles();
  SilentFiles(const SilentFiles&) = delete;
  SilentFiles& operator=(const SilentFiles&) = delete;

  const std::string& missing() const { return missing_; }
  const std::string& directory() const { return directory_; }
  std::string file() const { return directory_ + "/file"; }
  // The descriptor of /dev/fuse: a forked process closes it before all else, or the file system would outlive this object.
  int connection() const { return connection_.get(); }

  // From now on attributes of what is opened are not told. (Flushes and new files are never answered.)
  void HideAttributes() { hides_attributes_.store(true); }
  // Requests that were read and will never be answered.
  uint32_t unanswered() const { return unanswered_.load(); }

 private:
  void Serve();
  bool Answer(const std::byte* request);
  void Reply(uint64_t unique, int error, const void* content, size_t bytes);

  const uint32_t owner_;
  std::string missing_, directory_;
  UniqueFd connection_, stop_;
  std::atomic<bool> hides_attributes_{false};
  std::atomic<uint32_t> unanswered_{0};
  std::thread server_;
};

}  // namespace tidepool::testing
