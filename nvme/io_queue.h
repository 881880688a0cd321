// IoQueue: reads, writes and flushes of a few files, given to the system and answered in any order
// (a virtual seam of the house).
//
// One thread submits and reaps. Forms: io_uring, threads with pread and pwrite where the system
// denies io_uring, a simulated disk in tests. Invariants: files and memory are those that the queue
// was opened with; a request's memory stays untouched by its owner until the request was reaped; at
// most depth() requests are out; every result is looked at (IoResult). Offsets and sizes are bytes,
// multiples of 4 KiB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"

namespace tidepool::nvme {

// Bytes that were moved, or minus an errno. It must be read: a result that is destroyed unread
// stops the process.
class [[nodiscard]] IoResult {
 public:
  explicit IoResult(int32_t value) : value_(value) {}
  IoResult(IoResult&& other) noexcept
      : value_(other.value_), read_(std::exchange(other.read_, true)) {}
  IoResult(const IoResult&) = delete;
  IoResult& operator=(IoResult&&) = delete;
  ~IoResult() { TP_CHECK(read_, "the result of a read or a write is looked at"); }

  // The value; it counts as looked at from then on.
  [[nodiscard]] int32_t Read() {
    read_ = true;
    return value_;
  }

 private:
  const int32_t value_;
  bool read_ = false;
};

// kSync: what was answered before is on the medium afterwards.
enum class IoKind : uint8_t { kRead, kWrite, kSync };

// One read, write or flush of one file.
struct IoRequest {
  IoKind kind = IoKind::kRead;
  uint32_t file = 0;  // index into the files that the queue was opened with
  uint64_t offset = 0;
  std::byte* data = nullptr;
  uint32_t bytes = 0;
  uint64_t tag = 0;  // comes back
};

// A request that has ended, by its tag.
struct IoDone {
  uint64_t tag;
  IoResult result;
};

class IoQueue {
 public:
  virtual ~IoQueue() = default;
  // Takes a request; requires that fewer than depth() are out. It may wait for the next Flush.
  virtual void Submit(const IoRequest& request) = 0;
  // Hands what was submitted to the system.
  virtual void Flush() = 0;
  // One request that has ended; nothing when there is none now.
  virtual std::optional<IoDone> Reap() = 0;
  // Most requests that may be out.
  virtual uint32_t depth() const = 0;
  // Becomes readable when a request has ended. Call ClearEvent before the Reap that finds nothing.
  virtual int event_fd() const = 0;
  virtual void ClearEvent() = 0;
  // "io_uring, registered buffers and files", for the log.
  virtual std::string Name() const = 0;
};

// What a queue is opened with; files and memory outlive it.
struct IoQueueOptions {
  uint32_t depth = 64;
  bool allow_uring = true;
  uint32_t threads = 4;    // of the fallback, for each line of files
  std::vector<int> files;  // outlive the queue
  // One behind the other, of one drive; 0: all are one line.
  uint32_t files_per_line = 0;
  // Registered where possible (1 GiB each at most); other memory may be used too.
  std::vector<std::span<std::byte>> buffers;
};

// What was opened, and why it is not the fastest form; `fallback` is empty when it is.
struct OpenedIoQueue {
  std::unique_ptr<IoQueue> queue;
  std::string fallback;
};

// The best form that the system allows.
OpenedIoQueue OpenIoQueue(const IoQueueOptions& options);

}  // namespace tidepool::nvme
