// OperationThread: carries out one group's operations in request order, where other threads
// (Gloo's) move the bytes: it begins operations, lends a part buffer to each that needs one, and
// forms sums.
//
// The constructing thread calls Start, Ended, ResultOf and AwaitChange; the threads that move bytes
// call PieceEnded. Operations end in the order in which they were started. At most kPartsAtOnce
// buffers are lent at a time: an operation that finds none waits, and so do those behind it, which
// keeps the order equal on all ranks. After a failure nothing more is begun, and every later
// operation fails.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/event_queue.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace tidepool::trainer {

// The most part buffers of a group, each as large as the largest block that it reduces. (Gloo works
// on two operations at a time.)
inline constexpr uint32_t kPartsAtOnce = 2;

// One operation, as callbacks for the thread.
struct ThreadOperation {
  struct Begun {
    // How many calls of PieceEnded follow, also if `status` is not ok.
    uint32_t pieces = 0;
    Status status{};
  };
  uint64_t part_bytes = 0;  // of the buffer that it needs; 0: none
  // If set, `ask` runs before `begin`, and `judge` after all pieces of `ask` have succeeded. The
  // operation begins if `judge` returns ok, else it ends with that error. No later operation begins
  // before that.
  std::function<Begun(uint64_t number)> ask{};
  std::function<Status()> judge{};
  // Both run on the thread. `parts`: [part_bytes], valid until `finish` has returned; null if none
  // is needed.
  std::function<Begun(uint64_t number, std::byte* parts)> begin{};
  std::function<void(std::byte* parts)> finish{};  // all pieces have succeeded; may be empty
};

class OperationThread {
 public:
  OperationThread();
  // Requires that all operations have ended and no thread is in PieceEnded.
  ~OperationThread();
  OperationThread(const OperationThread&) = delete;
  OperationThread& operator=(const OperationThread&) = delete;

  // Returns the operation's number, from 1. Its memory is the thread's until it has ended.
  uint64_t Start(ThreadOperation operation);
  bool Ended(uint64_t number) const { return ended_.load(std::memory_order_acquire) >= number; }
  // The result of an operation that has ended: its own error, or that of an earlier one.
  Status ResultOf(uint64_t number) const;
  // Returns true when an operation may have ended since the last call; false after `wait_ms`.
  bool AwaitChange(int wait_ms);
  uint64_t started() const { return started_; }

  // Any thread: one piece of a begun operation has ended.
  void PieceEnded(uint64_t number, Status status);

  // Any thread: bytes of all existing buffers, lent or not.
  uint64_t part_bytes() const { return part_bytes_.load(std::memory_order_relaxed); }

 private:
  struct Buffer {
    std::unique_ptr<std::byte[]> bytes{};
    uint64_t size = 0;
    bool lent = false;
  };
  struct InWork {
    ThreadOperation operation;
    bool asked = false, begun = false;
    uint32_t pieces_left = 0;
    Buffer* buffer = nullptr;
    Status status{};
  };
  struct Event {
    enum class Kind : uint8_t { kStart, kPieceEnded, kLeave } kind = Kind::kLeave;
    ThreadOperation operation{};
    uint64_t number = 0;
    Status status{};
  };

  // Used by the thread only.
  void Run();
  void TakeEvents();
  void EndThoseComplete();
  // Begins, in order, the operations whose check passed and for which there are buffers.
  void BeginThoseInTurn();
  // Returns false while pieces of `ask` have not ended.
  bool Judged(InWork* one);
  // Returns false when the operation needs a buffer and all are lent.
  bool LendBuffer(InWork* one);

  std::deque<InWork> in_work_;
  uint64_t oldest_ = 1;  // number of the first in progress
  uint64_t next_begun_ = 1;
  std::array<Buffer, kPartsAtOnce> buffers_;
  std::vector<Event> taken_;
  bool refused_ = false;  // an operation failed its check: no later one begins
  bool leaves_ = false;

  // Shared by the threads.
  EventQueue<Event> events_;
  UniqueFd changed_;
  std::atomic<uint64_t> ended_{0};                 // all operations up to this one
  std::atomic<uint64_t> failed_from_{UINT64_MAX};  // the first one that failed
  Status failure_;                                 // written before failed_from_ is set
  std::atomic<uint64_t> part_bytes_{0};

  uint64_t started_ = 0;  // used by the caller only
  std::thread thread_;
};

}  // namespace tidepool::trainer
