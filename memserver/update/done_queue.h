// DoneQueue: what workers have finished, on its way back to the one thread that hands out work.
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
  // `most`: notices that it can hold; the owner never has more work in hand.
  explicit DoneQueue(uint32_t most);

  // How many notices it holds at most.
  uint32_t capacity() const { return ring_.capacity(); }
  // Any worker: adds a notice.
  void Push(const WorkDone& done);
  // Moves everything that was pushed into `out` (cleared first); true when there was something.
  bool TakeAll(std::vector<WorkDone>* out);

  // Readable after the Push that the last Arm asked for. Armed from the start, for the first.
  int event_fd() const { return event_.get(); }
  // Before sleeping: Arm, then TakeAll once more. What was pushed before is there by then; of what
  // comes later, the Push with this number makes event_fd() readable. So no more than are still to
  // come.
  void Arm(uint32_t pushes = 1);

 private:
  BoundedRing<WorkDone> ring_;
  const UniqueFd event_;
  std::atomic<int64_t> until_event_{1};  // pushes; 0 and below: nobody is to be woken
};

}  // namespace tidepool::memserver
