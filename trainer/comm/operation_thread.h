// OperationThread: carries out the operations of one group in the order of the requests, where
// other threads (Gloo's) move the bytes: it begins operations, lends a buffer of parts to each that
// needs one, and forms sums.
//
// The constructing thread calls Start, Ended, ResultOf and AwaitChange; PieceEnded is for the
// threads that move bytes. Operations end in the order in which they were started. At most
// kPartsAtOnce buffers are lent at a time: an operation that finds none waits, and those behind it
// too, so that the order is that of the other ranks. After a failure nothing more is begun, and all
// that ends behind it fails.
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

// The most buffers of parts that a group has, each as large as the largest block that it reduces.
// (Gloo has two operations in work.)
inline constexpr uint32_t kPartsAtOnce = 2;

// One operation, as calls of the thread.
struct ThreadOperation {
  struct Begun {
    // The number of calls of PieceEnded that follow, also where `status` is not ok.
    uint32_t pieces = 0;
    Status status{};
  };
  uint64_t part_bytes = 0;  // of the buffer that it needs; 0: none
  // Where they are not empty, `ask` comes before `begin`, and `judge` when all pieces of `ask` have
  // ended well. The operation begins where `judge` is ok, else it ends with that error. Nothing of
  // a later operation begins before.
  std::function<Begun(uint64_t number)> ask{};
  std::function<Status()> judge{};
  // Both run on the thread. `parts`: [part_bytes], until `finish` has returned; null where none is
  // needed.
  std::function<Begun(uint64_t number, std::byte* parts)> begin{};
  std::function<void(std::byte* parts)> finish{};  // all pieces have ended well; may be empty
};

class OperationThread {
 public:
  OperationThread();
  // Requires that all operations have ended, and that nobody is in PieceEnded any more.
  ~OperationThread();
  OperationThread(const OperationThread&) = delete;
  OperationThread& operator=(const OperationThread&) = delete;

  // Returns the operation's number, from 1. Its memory is the thread's until it has ended.
  uint64_t Start(ThreadOperation operation);
  bool Ended(uint64_t number) const { return ended_.load(std::memory_order_acquire) >= number; }
  // The result of an operation that has ended: its error, or that of one before it.
  Status ResultOf(uint64_t number) const;
  // Returns when something may have ended since the last call, or after `wait_ms`; false: after
  // `wait_ms`.
  bool AwaitChange(int wait_ms);
  uint64_t started() const { return started_; }

  // Any thread: one of the pieces of an operation that was begun has ended.
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
  // Begins the operations that were judged well and for which there are buffers, in order.
  void BeginThoseInTurn();
  // Returns false while pieces of `ask` have not ended.
  bool Judged(InWork* one);
  // Returns false when the operation needs a buffer and all are lent.
  bool LendBuffer(InWork* one);

  std::deque<InWork> in_work_;
  uint64_t oldest_ = 1;  // number of the first in work
  uint64_t next_begun_ = 1;
  std::array<Buffer, kPartsAtOnce> buffers_;
  std::vector<Event> taken_;
  bool refused_ = false;  // an operation was not judged well: nothing behind it begins
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
