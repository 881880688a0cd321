// WakeUps: counts the reasons to look again at what waits in the serve loop.
//
// One thread (the serve loop). A request that cannot go on is parked until its job's progress count
// grows; a rank that waits for room, until the room-change count grows. A missed wake-up parks it
// for ever, so code that changes something a request may wait for notes the reason here and counts
// nowhere else. A superfluous note costs one look. The simulator checks that nothing waits for a
// missed note (tests/sim/wake_checks.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tidepool::memserver {

// Why a parked request of a job may go on. Gradients (GradientIntake) and frozen chunks
// (FrozenTable) count their own reasons; see Job::Changes.
enum class JobProgress : uint8_t {
  kPutStagingFree,    // the next put may take the staging buffer of its rank
  kWeightsLoaded,     // a chunk's first weights are complete
  kWindowFilled,      // weights on NVMe are in the window
  kStepSealed,        // the next version is decided
  kVersionPublished,  // a chunk that a parked request names has its new version
  kStepSkipped,       // chunks have their new version without an update
  kStepAbandoned,     // the open step cannot be sealed
  kCount
};

// Why a waiting rank may be given a session slot, or told something new.
enum class RoomChange : uint8_t {
  kRankLeft,       // a rank left its job
  kJobRemoved,     // a job gave back all that it held
  kJobTakenUp,     // a job that was set aside is taken up
  kWaitingLeft,    // a rank ahead of others no longer waits
  kQuotas,         // quotas or priorities changed
  kDrain,          // an admin closed the server for new jobs, or opened it
  kDemotionEnded,  // states went to NVMe, or stay for now
  kNotToDemote,    // a job that was to be demoted is at rest, or will not be
  kCount
};

template <typename Reason>
class WakeUps {
 public:
  // Counts one more reason.
  void Note(Reason why) {
    ++total_;
    ++by_reason_[static_cast<size_t>(why)];
  }
  // Grows with every note: a reader that has seen this number has nothing new to look at.
  uint64_t total() const { return total_; }
  uint64_t of(Reason why) const { return by_reason_[static_cast<size_t>(why)]; }

 private:
  uint64_t total_ = 0;
  std::array<uint64_t, static_cast<size_t>(Reason::kCount)> by_reason_{};
};

}  // namespace tidepool::memserver
