// LogQueue: lines on their way to a descriptor that takes them slowly, or not at all, so that no
// caller waits for it.
//
// Any thread. A thread of its own writes; it lives as long as the process, as it may stand in a
// write for ever. Lines beyond kBytesMax that nobody has taken are dropped and counted; the next
// line that is written says how many. A crash loses only what stands in the queue; Flush writes
// that, in bounded time.
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
  // Lines go to `fd`, which stays the caller's and open. `about_dropped` makes the line that says
  // how many are missing.
  LogQueue(int fd, std::function<std::string(uint64_t)> about_dropped);
  LogQueue(const LogQueue&) = delete;
  LogQueue& operator=(const LogQueue&) = delete;

  // `line` includes its end of line.
  void Push(std::string line);
  // True when all that was pushed is written; false after `timeout_ns`. Allocates nothing, and does
  // not wait for a lock.
  bool Flush(int64_t timeout_ns);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Writes what `fd` takes within `timeout_ns`, piece by piece as a pipe takes them without waiting.
// False where it was not all. Allocates nothing. (A file, or a pipe that others fill at the same
// moment, may take longer.)
bool WriteWithin(int fd, std::string_view text, int64_t timeout_ns);

}  // namespace tidepool
