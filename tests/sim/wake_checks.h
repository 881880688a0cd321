// WakeChecks: nobody in the simulated server waits for nothing.
//
// One thread, between turns; one object for the life of a world. A broken invariant stops the
// process. What is parked is looked at again only when somebody has noted a reason
// (memserver/jobs/wake_ups.h), so a reason that nobody noted parks it for ever, and what repairs it
// a moment later, a death or the next step, hides that. Therefore:
//  1. After a turn that did nothing, no parked request could go on that was looked at since the
//     last reason was noted: what it waits for has not come about. (A turn that did something may
//     have changed things behind the look at the requests.)
//  2. After such a turn, no rank waits for its former self that has gone.
//  3. A parked request implies a future event of its job, one of:
//     - work in flight: a copy, work at a worker, a transfer, a save, zeroing;
//     - a due timer: a write that is put off, a transfer that is to be repeated;
//     - a rank that owes something: its part of the weights, its end of the open step, its leave in
//       a run of which another rank was lost, or its place in the run, which it has not taken yet.
//  4. A waiting rank implies a future event: its former self is being removed, states are on their
//     way to NVMe for it, or, where it waits for jobs to end, another job is there.
// 3. and 4. may be false for kTurnsMax turns in a row: what is due is done a bit at a time, and put
// off where TP_BUGGIFY says so.
#pragma once

#include <cstdint>
#include <map>

#include "tests/fakes/serve_world.h"

namespace tidepool::memserver {

class WakeChecks {
 public:
  static constexpr uint64_t kTurnsMax = 200;

  // Another server has begun.
  void BeginServer() {
    idle_.clear();
    waiting_for_nothing_ = 0;
  }
  // After a turn; `worked` when it did something. `saves`: at the checkpoint thread.
  void CheckTurn(ServeWorld* world, bool worked, bool saves);
  // Parked requests and waiting ranks that were looked at after turns that did nothing.
  uint64_t looked_at() const { return looked_at_; }

 private:
  void CheckParked(const Job& job, bool worked);
  void CheckWaiting(ServeWorld* world, bool worked);

  std::map<JobId, uint64_t> idle_;  // turns in a row in which nothing could come to the job
  uint64_t waiting_for_nothing_ = 0;
  uint64_t looked_at_ = 0;
};

}  // namespace tidepool::memserver
