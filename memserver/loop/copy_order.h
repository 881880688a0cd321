// CopyOrder: decides which copy between the pool and GPU memory begins next.
//
// One thread (the serve loop). GPUs behind one root complex share its bandwidth, so their copies
// share one queue in each direction. In a queue
//  1. jobs take turns by their shares, in bytes (fair_share.h);
//  2. an awaited copy (traffic/copy_lane.h) goes before copies that nobody awaits yet, on its job's
//     account and at most by a round's share: urgency changes the order, not the shares;
//  3. among the requests of one job's ranks behind this root complex, the one that has been awaited
//     longest begins; if none is awaited yet, the one that will be awaited first.
// No request starves: one that came ahead of time becomes awaited while others begin, its job's
// turn comes by its share, and within the job no later request has an earlier moment. Only a copy
// that may begin takes part: its `ready` flag is set, and its GPU and root complex have room
// (traffic/gpu_streams.h). A copy found to wait for a version is tried again when its job has
// changed.
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

  // Begins a bounded number of copies in every queue. True if there was one.
  bool Begin();

 private:
  struct Queue {
    FairShare fair;
    size_t first_job = 0;  // the next search for an awaited copy starts here
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
  // Begins one copy of the job; returns its cost, 0 if there was none to begin.
  uint64_t BeginOf(const Job& job, Place place, bool awaited_only);

  Tables* const tables_;
  Dispatcher* const dispatcher_;
  std::vector<std::array<Queue, kLaneWays>> queues_;  // indexed by root complex number
  // A share for jobs on the host, which have no copies here.
  Share nobody_;
};

}  // namespace tidepool::memserver
