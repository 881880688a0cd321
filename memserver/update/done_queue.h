// DoneQueue: returns finished work from the workers to the one thread that hands out work.
//
// Workers Push; the owner of the team takes. Nothing is written to the eventfd while the owner
// polls: only an owner that has announced its sleep (Arm) is woken, once, by the next Push or by a
// later one.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/unique_fd.h"
#include "memserver/update/bounded_ring.h"
#include "memserver/update/work.h"

namespace tidepool::memserver {

class DoneQueue {
 public:
  // `most`: its capacity in notices; the owner never has more work in hand.
  explicit DoneQueue(uint32_t most);

  // The capacity in notices.
  uint32_t capacity() const { return ring_.capacity(); }
  // Adds a notice; any worker.
  void Push(const WorkDone& done);
  // Moves everything pushed into `out` (cleared first); true if there was something.
  bool TakeAll(std::vector<WorkDone>* out);

  // Readable after the Push that the last Arm asked for. Initially armed for the first Push.
  int event_fd() const { return event_.get(); }
  // Before sleeping: call Arm, then TakeAll once more, which returns everything pushed before. Of
  // the later ones, the Push with number `pushes` makes event_fd() readable, so `pushes` must not
  // exceed the number still to come.
  void Arm(uint32_t pushes = 1);

 private:
  BoundedRing<WorkDone> ring_;
  const UniqueFd event_;
  std::atomic<int64_t> until_event_{1};  // pushes; 0 and below: wake nobody
};

}  // namespace tidepool::memserver
