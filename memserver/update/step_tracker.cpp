#include "memserver/update/step_tracker.h"

#include <bit>
#include <cstddef>

#include "base/check.h"

namespace tidepool::memserver {

const char* StepTracker::End(Rank rank, const shm::EndStepRequest& request) {
  TP_CHECK(!HasEnded(rank), "a rank ends a step once");
  if (ended_ != 0) {
    const shm::EndStepRequest& first = ends_[static_cast<size_t>(std::countr_zero(ended_))];
    if (request.learning_rate != first.learning_rate)
      return "ranks end a step with different learning rates";
    if (request.loss_scale != first.loss_scale)
      return "ranks end a step with different loss scales";
    if (request.scaler_steps != first.scaler_steps)
      return "ranks end a step with different loss scaler counts";
  }

  ended_ |= uint64_t{1} << rank;
  ends_[rank] = request;
  return nullptr;
}

}  // namespace tidepool::memserver
