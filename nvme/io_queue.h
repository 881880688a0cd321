// IoQueue: reads, writes and flushes of a few files, submitted to the system and completed in any
// order (one of the virtual seams).
//
// One thread submits and reaps. Forms: io_uring, threads with pread and pwrite if the system denies
// io_uring, a simulated disk in tests. Invariants: files and memory are those that the queue was
// opened with; the owner does not touch a request's memory until the request was reaped; at most
// depth() requests are in flight; every result is read (IoResult). Offsets and sizes are bytes,
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

// Bytes moved, or minus an errno. It must be read: a result that is destroyed unread stops the
// process.
class [[nodiscard]] IoResult {
 public:
  explicit IoResult(int32_t value) : value_(value) {}
  IoResult(IoResult&& other) noexcept
      : value_(other.value_), read_(std::exchange(other.read_, true)) {}
  IoResult(const IoResult&) = delete;
  IoResult& operator=(IoResult&&) = delete;
  ~IoResult() { TP_CHECK(read_, "the result of a read or a write is looked at"); }

  // The value; marks it as read.
  [[nodiscard]] int32_t Read() {
    read_ = true;
    return value_;
  }

 private:
  const int32_t value_;
  bool read_ = false;
};

// kSync: requests completed before it are on the medium afterwards.
enum class IoKind : uint8_t { kRead, kWrite, kSync };

// One read, write or flush of one file.
struct IoRequest {
  IoKind kind = IoKind::kRead;
  uint32_t file = 0;  // index into the files that the queue was opened with
  uint64_t offset = 0;
  std::byte* data = nullptr;
  uint32_t bytes = 0;
  uint64_t tag = 0;  // returned with the result
};

// A completed request, by its tag.
struct IoDone {
  uint64_t tag;
  IoResult result;
};

class IoQueue {
 public:
  virtual ~IoQueue() = default;
  // Takes a request; requires fewer than depth() in flight. It may wait for the next Flush.
  virtual void Submit(const IoRequest& request) = 0;
  // Passes the submitted requests to the system.
  virtual void Flush() = 0;
  // One completed request; nothing if there is none now.
  virtual std::optional<IoDone> Reap() = 0;
  // Most requests that may be in flight.
  virtual uint32_t depth() const = 0;
  // Becomes readable when a request has completed. Call ClearEvent before the last Reap.
  virtual int event_fd() const = 0;
  virtual void ClearEvent() = 0;
  // "io_uring, registered buffers and files", for the log.
  virtual std::string Name() const = 0;
};

// Parameters of a queue; files and memory outlive it.
struct IoQueueOptions {
  uint32_t depth = 64;
  bool allow_uring = true;
  uint32_t threads = 4;    // of the fallback, per line of files
  std::vector<int> files;  // outlive the queue
  // Consecutive files that belong to one drive; 0: all are one line.
  uint32_t files_per_line = 0;
  // Registered if possible (1 GiB each at most); other memory may be used too.
  std::vector<std::span<std::byte>> buffers;
};

// The opened queue, and why it is not the fastest form; `fallback` is empty if it is.
struct OpenedIoQueue {
  std::unique_ptr<IoQueue> queue;
  std::string fallback;
};

// Opens the best form that the system allows.
OpenedIoQueue OpenIoQueue(const IoQueueOptions& options);

}  // namespace tidepool::nvme
