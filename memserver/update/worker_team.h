// WorkerTeam: the threads that run the optimizer, behind a bounded queue of Work and a queue of WorkDone.
//
// Push, TakeDone and RunOne belong to one thread (the serve loop; a simulator that pops the queue itself counts as that thread). With
// 0 threads the team is *inline*: nothing happens until RunOne is called, so that a simulator decides when, and in which order.
// Invariant: results do not depend on the number of threads or on the order in which work is done.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/event_queue.h"
#include "memserver/update/work.h"
#include "memserver/update/worker.h"
#include "optim/isa.h"

namespace tidepool::memserver {

struct WorkerTeamOptions {
  uint32_t threads = 0;         // 0: inline
  uint32_t inline_workers = 1;  // of an inline team: each has undo areas of its own
  bool pin = false;             // one CPU of the allowed set each; ignored where there are not more CPUs than workers
  optim::IsaLevel isa = optim::BestIsa();
  // Work items a worker that may wait in the queue: enough that no worker idles for the length of a turn, few enough that the loop
  // decides late what comes next.
  uint32_t ahead = 2;
};

class WorkerTeam {
 public:
  // Bytes of kept memory for the undo areas of a team.
  static uint64_t UndoBytes(uint32_t threads);
  // `undo` is zeroed kept memory of at least UndoBytes(threads), 64-byte aligned; it outlives the team.
  WorkerTeam(const WorkerTeamOptions& options, std::span<std::byte> undo);
  // Waits for the work in hand; what was queued and not begun is dropped.
  ~WorkerTeam();
  WorkerTeam(const WorkerTeam&) = delete;
  WorkerTeam& operator=(const WorkerTeam&) = delete;

  uint32_t threads() const { return static_cast<uint32_t>(threads_.size()); }
  bool is_inline() const { return threads_.empty(); }
  optim::IsaLevel isa() const { return kernels_.isa; }

  // True when Push has room. Only the pushing thread fills the queue, so the answer holds until its next Push.
  bool HasRoom() const;
  void Push(const Work& work);
  // What was finished since the last call; cleared first. True when there was something.
  bool TakeDone(std::vector<WorkDone>* done) { return done_.TakeAll(done); }
  int done_fd() const { return done_.event_fd(); }
  void ClearDoneEvent() { done_.ClearEvent(); }

  // Inline team: how much waits, and doing one item of it (0 is the oldest) on the calling thread, as one of the workers.
  uint32_t waiting() const;
  void RunOne(uint32_t index, uint32_t worker = 0);

 private:
  void RunThread(uint32_t index);
  void Pin(uint32_t index);

  // Fixed after construction.
  const optim::Kernels& kernels_;
  const size_t queue_max_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::thread> threads_;
  // Guards itself.
  EventQueue<WorkDone> done_;
  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::condition_variable work_there_;
  std::vector<Work> queue_;  // oldest first; at most queue_max_
  bool stopping_ = false;
};

}  // namespace tidepool::memserver
