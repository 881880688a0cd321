// SilentFiles: a file system of this process (FUSE) whose answers stop where a test says so: what a
// hostile or broken one does to whoever asks it. A thread that waits for such an answer cannot be
// ended, not by SIGKILL either, until this object is gone.
//
// One thread makes, asks and destroys it. The files may be opened by other processes alone: this
// one's own open, stat or close of them would wait for itself. Needs /dev/fuse and the right to
// mount; `missing()` says what is not there.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <utility>

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
  // The descriptor of /dev/fuse: a forked process closes it before all else, or the file system
  // would outlive this object.
  int connection() const { return connection_.get(); }

  // From now on attributes of what is opened are not told. (Flushes and new files are never
  // answered.)
  void HideAttributes() { hides_attributes_.store(true); }
  // New files are made from now on, and the writes behind the first `count` have no answer until
  // AnswerWrites. Before anybody writes.
  void HoldWritesBehind(uint32_t count) { writes_answered_.store(count); }
  // The write that is held, and those to come. Requires that one is held: unanswered() says so.
  void AnswerWrites();
  // Called on a thread of this object for each write that is read. Before anybody writes.
  void OnWrite(std::function<void(std::span<const std::byte>)> on_write) {
    on_write_ = std::move(on_write);
  }
  // Requests that were read and not answered.
  uint32_t unanswered() const { return unanswered_.load(); }

 private:
  void Serve();
  bool Answer(const std::byte* request);
  bool TakeWrite(uint64_t unique, std::span<const std::byte> content);
  void Reply(uint64_t unique, int error, const void* content, size_t bytes);

  const uint32_t owner_;
  std::string missing_, directory_;
  UniqueFd connection_, stop_;
  std::atomic<bool> hides_attributes_{false};
  std::atomic<uint32_t> unanswered_{0};
  std::atomic<int64_t> writes_answered_{-1};  // to come; below 0: no file is made
  std::atomic<uint64_t> held_write_{0};       // its name
  std::atomic<uint32_t> held_bytes_{0};
  std::function<void(std::span<const std::byte>)> on_write_;
  std::thread server_;
};

}  // namespace tidepool::testing
