// StepTracker: which ranks have ended the open step, and with which numbers; and the verdict over a
// complete step.
//
// One thread (the serve loop). Pure bookkeeping: it sends no answers and writes no record
// (update/seal.h does).
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "shm/messages.h"

namespace tidepool::memserver {

class StepTracker {
 public:
  explicit StepTracker(uint32_t world)
      : world_mask_(world == 64 ? ~uint64_t{0} : (uint64_t{1} << world) - 1), ends_(world) {}

  // Notes that the rank ends the step. Returns null, or what differs from the ranks that ended the
  // step before it. Requires !HasEnded(rank).
  const char* End(Rank rank, const shm::EndStepRequest& request);
  bool HasEnded(Rank rank) const { return (ended_ >> rank & 1) != 0; }
  bool AllEnded() const { return ended_ == world_mask_; }
  // The numbers of a rank that has ended the step.
  const shm::EndStepRequest& end(Rank rank) const { return ends_[rank]; }
  void Clear() { ended_ = 0; }

 private:
  const uint64_t world_mask_;
  uint64_t ended_ = 0;
  std::vector<shm::EndStepRequest> ends_;  // by rank; valid where ended
};

}  // namespace tidepool::memserver
