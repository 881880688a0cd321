// LogQueue: a queue of lines for a descriptor that may accept them slowly, or not at all, so that
// no caller waits for it.
//
// Any thread. A thread of its own writes; it lives as long as the process, because it may block in
// a write for ever. Pending lines beyond kBytesMax are dropped and counted; the next line that is
// written says how many. A crash loses only the queue; Flush writes it, in bounded time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace tidepool {

class LogQueue {
 public:
  static constexpr size_t kBytesMax = size_t{1} << 20;  // some thousand lines
  // Lines go to `fd`, which must stay open and stays the caller's. `about_dropped` makes the line
  // that says how many are missing.
  LogQueue(int fd, std::function<std::string(uint64_t)> about_dropped);
  LogQueue(const LogQueue&) = delete;
  LogQueue& operator=(const LogQueue&) = delete;

  // `line` includes its newline.
  void Push(std::string line);
  // True if all pushed lines are written; false after `timeout_ns`. Allocates nothing, and does not
  // wait for a lock.
  bool Flush(int64_t timeout_ns);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Writes what `fd` accepts within `timeout_ns`, in pieces that a pipe accepts without blocking.
// False if that was not all. Allocates nothing. (A file, or a pipe that others fill at the same
// moment, may take longer.)
bool WriteWithin(int fd, std::string_view text, int64_t timeout_ns);

}  // namespace tidepool
