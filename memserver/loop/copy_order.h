// CopyOrder: which copy between the pool and memory of a GPU begins next.
//
// One thread (the serve loop). GPUs behind one root complex share its bandwidth, so their copies
// stand in one queue, each way in its own. In a queue
//  1. jobs take turns by their shares, in bytes (fair_share.h);
//  2. an awaited copy (traffic/copy_lane.h) goes before those that nobody awaits yet, on its job's
//     account and not beyond a round's share: being in a hurry changes the order, not the shares;
//  3. among what one job's ranks behind this root complex have asked for, the copy begins that has
//     been awaited longest; where none is awaited yet, the one that will be awaited first.
// Nothing waits for ever: a copy that was asked for ahead comes to be awaited while others begin,
// its job's turn comes by its share, and in the job nothing that comes later has an earlier moment.
// Only a copy that may begin takes part: its `ready` flag says so, and its GPU and root complex
// have room (traffic/gpu_streams.h). A copy found to wait for a version is tried again when
// something of its job has changed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memserver/loop/dispatcher.h"
#include "memserver/jobs/fair_share.h"
#include "memserver/jobs/tables.h"

namespace tidepool::memserver {

class CopyOrder {
 public:
  CopyOrder(Tables* tables, Dispatcher* dispatcher) : tables_(tables), dispatcher_(dispatcher) {}

  // Begins a bounded number of copies in every queue. True when there was one.
  bool Begin();

 private:
  struct Queue {
    FairShare fair;
    size_t first_job = 0;  // looked at first for an awaited copy
  };
  struct Place {
    size_t root;
    LaneWay way;
  };
  struct Next {
    SessionSlot* slot = nullptr;
    const shm::Request* request = nullptr;  // null: the job has none that may begin
    uint64_t awaited_at = 0;
    bool awaited = false;
  };
  Next NextOf(const Job& job, Place place) const;
  bool BeginOne(Place place, Queue* queue);
  bool BeginAwaited(Place place, Queue* queue);
  // Begins one copy of the job; returns its cost, 0 when there was none to begin.
  uint64_t BeginOf(const Job& job, Place place, bool awaited_only);

  Tables* const tables_;
  Dispatcher* const dispatcher_;
  std::vector<std::array<Queue, kLaneWays>> queues_;  // by number of the root complex
  // The share that jobs on the host get here, where they have no copies.
  Share nobody_;
};

}  // namespace tidepool::memserver
