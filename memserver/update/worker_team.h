// WorkerTeam: the threads that run the optimizer, between a bounded queue of Work and a queue of
// WorkDone.
//
// Push, TakeDone and RunOne belong to one thread (the serve loop; a simulator that pops the queue
// itself counts as that thread). With 0 threads the team is *inline*: nothing happens until RunOne
// is called, so that a simulator decides when, and in which order. Invariant: results do not depend
// on the number of threads or on the order of the work. While work is queued, workers need no
// wake-up by the system: a worker takes the next item from a lock-free ring, and polls it for a
// bounded time (spin_ns) before it sleeps. An idle team sleeps. Background work runs at low
// priority (ThreadNice), but only while all queued work is background work: where trainers keep
// every CPU busy, a low-priority worker might finish late, and the work queued behind it belongs to
// one of those trainers.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "memserver/update/bounded_ring.h"
#include "memserver/update/done_queue.h"
#include "memserver/update/thread_nice.h"
#include "memserver/update/work.h"
#include "memserver/update/worker.h"
#include "optim/kernels/isa.h"

namespace tidepool::memserver {

// Number of threads, their CPUs, and how they wait.
struct WorkerTeamOptions {
  uint32_t threads = 0;         // 0: inline
  uint32_t inline_workers = 1;  // for an inline team, each with its own undo areas
  // Worker i runs on cpus[i]; the system places workers beyond the end.
  std::vector<uint32_t> cpus = {};
  optim::IsaLevel isa = optim::BestIsa();
  // Work items per worker that may wait in the queue: enough that no worker idles for the length of
  // a turn, few enough that the loop decides late what comes next. Threads get more while their
  // items are small (kSmallBytes), as for jobs with many small chunks.
  uint32_t ahead = 2;
  // Times the spinning of idle threads and timed work; outlives the team. An inline team needs
  // none.
  const Clock* clock = nullptr;
  // How long a worker without work polls before it sleeps; a sleeper is woken by a futex. Negative:
  // automatic.
  int64_t spin_ns = -1;
  optim::Tuning tuning = {};
};

class WorkerTeam {
 public:
  // Bytes of kept memory for the undo areas of a team.
  static uint64_t UndoBytes(uint32_t threads);
  // `undo` is zeroed kept memory of at least UndoBytes(threads), 64-byte aligned; it outlives the
  // team.
  WorkerTeam(const WorkerTeamOptions& options, std::span<std::byte> undo);
  // Waits for the work in hand; drops queued work that has not begun.
  ~WorkerTeam();
  WorkerTeam(const WorkerTeam&) = delete;
  WorkerTeam& operator=(const WorkerTeam&) = delete;

  // The number of threads of the team; 0: inline.
  uint32_t threads() const { return static_cast<uint32_t>(threads_.size()); }
  bool is_inline() const { return threads_.empty(); }
  optim::IsaLevel isa() const { return kernels_.isa; }

  optim::Tuning tuning() const { return tuning_; }
  // Sets the tuning of updates pushed from now on. The pushing thread calls it while no work is
  // queued or in hand.
  void SetTuning(const optim::Tuning& tuning);

  // True if Push has room. Only the pushing thread fills the queue, so the answer holds until its
  // next Push.
  bool HasRoom() const;
  void Push(const Work& work);
  // Takes the work finished since the last call; clears `done` first. True if there was some.
  bool TakeDone(std::vector<WorkDone>* done);
  // For poll: readable when something was finished after the last ArmDoneEvent; while more small
  // work waits than `ahead`, when half of that is done. Before sleeping: call ArmDoneEvent, then
  // TakeDone once more.
  int done_fd() const { return done_.event_fd(); }
  void ArmDoneEvent() { done_.Arm(in_hand_ > queue_min_ ? (in_hand_ - queue_min_ + 1) / 2 : 1); }

  // Inline team: the number of waiting items; RunOne does one of them (0 is the oldest) on the
  // calling thread, as one of the workers.
  uint32_t waiting() const;
  void RunOne(uint32_t index, uint32_t worker = 0);

 private:
  void RunThread(uint32_t index);
  WorkDone DoAs(uint32_t worker, const Work& work);
  bool Take(Work* work, ThreadNice* nice);
  void Sleep();
  void RaiseAll();
  void Pin(uint32_t index, uint32_t cpu);

  // Fixed after construction.
  const optim::Kernels& kernels_;
  const uint32_t queue_min_;  // items that may always wait
  const uint32_t queue_max_;  // items that may wait
  const Clock* const clock_;  // may be null for an inline team
  const int64_t spin_ns_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::thread> threads_;
  // Owned by the pushing thread.
  optim::Tuning tuning_;
  std::vector<Work> queue_;  // inline team: oldest first, at most queue_max_
  uint32_t in_hand_ = 0;     // pushed, and not taken back yet
  uint64_t bytes_in_hand_ = 0;
  bool had_background_ = false;  // there was background work: workers may have a low priority
  // Thread-safe members.
  DoneQueue done_;
  BoundedRing<Work> ring_;  // team with threads: at most queue_max_
  std::atomic<bool> stopping_{false};
  std::vector<std::unique_ptr<ThreadNice>> nices_;  // by worker
  // Items in the ring that are not background work, counted before they are pushed.
  std::atomic<uint32_t> urgent_{0};
  // Workers that sleep, or are about to: announced before the last check of the ring, and read
  // after a push.
  std::atomic<uint32_t> sleepers_{0};
  std::mutex sleep_mutex_;  // held between that check and the sleep
  std::condition_variable work_there_;
};

}  // namespace tidepool::memserver
