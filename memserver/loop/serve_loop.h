// ServeLoop: the one thread that owns all state of the daemon, and the order of work in a turn.
//
// Turn and Run belong to one thread; all other threads reach it through the queues in
// LoopNeighbours. A turn does a bounded amount of each kind of work, never blocks, and allocates
// nothing on the data path (control events may). A test or the simulator calls Turn itself. Order
// of a turn: control events, finished saves, finished work, states on NVMe and on GPUs, then for
// each session (a different one first each time) ended copies, parked and new requests and a slice
// of copying, then complete steps, work for the workers, violators, jobs, the snapshot.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "memserver/loop/copy_order.h"
#include "memserver/loop/dispatcher.h"
#include "memserver/jobs/job_desk.h"
#include "memserver/keeper/keeper_messages.h"
#include "memserver/loop/spin_budget.h"
#include "memserver/loop/off_host_mover.h"
#include "memserver/loop/step_desk.h"
#include "memserver/jobs/tables.h"

namespace tidepool::memserver {

class ServeLoop {
 public:
  ServeLoop(const LoopNeighbours& neighbours, const LoopOptions& options);

  // Before the first turn, and before the workers have work: takes up the jobs that another server
  // left in kept memory. `states`: GPU memory that the keeper holds for them. `living`: former
  // servers whose processes have not ended; FormerServersEnded reports their end. Errors:
  // kNvmeDirectoryMissing.
  Status Recover(const IndexContents& contents, std::span<const HeldMemory> states = {},
                 uint32_t living = 0);
  // Does one turn; true if something was done. Long turns are counted.
  bool Turn();
  // Runs turns until StopServing was handled and the last job is gone; when idle, spins for a
  // bounded time, then sleeps.
  void Run();
  bool stopped() const { return tables_.stopped; }

  // For tests and the simulator, between turns.
  const Tables& tables() const { return tables_; }
  const JobDesk& jobs() const { return desk_; }

 private:
  bool DoTurn();
  // Counts a turn that took longer than kLongTurnNs, since other clients had to wait for it.
  void CountTurn(int64_t took_ns);
  bool TakeControlEvents();
  bool TakeSaved();
  // Serves every rank once; takes at most `requests_max` new requests of each. True if it did
  // something.
  bool ServeSlots(uint32_t requests_max);
  // Takes new requests of a rank whose job has no competitor for copies.
  bool TakeNew(SessionSlot* slot, uint32_t requests_max);
  // ServeSlots if several jobs have ranks: they begin copies by their jobs' shares.
  bool ServeInShares(uint32_t requests_max);
  bool ServeOutOfTurn();
  uint64_t ServeOneSlot(Job* job);
  bool JobsCompete() const;
  bool ProgressCopies(SessionSlot* slot);
  bool RunInlineWork();
  void WakeAnswered();
  void Sleep();
  // What follows an answer to the clients that ended a sleep: more requests may come at once; other
  // work may be left; nothing is left.
  enum class Next { kSpin, kTurn, kSleep };
  // `at_rest`: what AtRest said before the sleep.
  Next Answer(bool at_rest);
  bool AtRest() const;
  void AnnounceSleep(bool sleeping);
  void ClearEvents();
  bool WatchNewSlots();
  bool CanSleep() const;
  bool MustPoll() const;

  const LoopNeighbours neighbours_;
  const LoopOptions options_;
  SpinBudget spin_;
  Tables tables_;
  JobDesk desk_;
  Dispatcher dispatcher_;
  StepDesk steps_;
  OffHostMover off_host_;
  std::vector<ControlEvent> events_;  // taken from the queue; those before next_event_ are handled
  size_t next_event_ = 0;
  std::vector<SaveResult> saved_;
  size_t first_slot_ = 0;
  int64_t turned_ns_ = 0;  // begin of the last turn
  // When the loop first found nothing to do, or when the last silence ended.
  int64_t idle_since_ns_ = 0;
  FairShare copies_;  // for copies on the host
  CopyOrder gpu_copies_;
};

}  // namespace tidepool::memserver
