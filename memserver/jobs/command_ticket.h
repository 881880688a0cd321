// CommandTicket: where the admin thread waits for the answer to a change that it mailed to the serve loop.
//
// Made and waited for by the admin thread, answered once by the control thread; the loop only hands it through, so that it wakes nobody.
#pragma once

#include <chrono>
#include <cstdint>
#include <future>
#include <optional>
#include <utility>

#include "base/status.h"
#include "memserver/jobs/access.h"

namespace tidepool::memserver {

// Who asks for a change, by the kernel's word.
struct AdminCaller {
  uint32_t uid = 0;
  int32_t pid = 0;
  AdminLevel level = AdminLevel::kNone;
  // Jobs of others are as if they were not there.
  bool MaySee(uint32_t owner) const { return level >= AdminLevel::kOperator || owner == uid; }
};

class CommandTicket {
 public:
  void Answer(Status result) { promise_.set_value(std::move(result)); }
  // The answer, once; none when it did not come in time. It may still come: the change may be made or not.
  std::optional<Status> Wait(int64_t timeout_ms) {
    if (result_.wait_for(std::chrono::milliseconds(timeout_ms)) != std::future_status::ready) return std::nullopt;
    return result_.get();
  }

 private:
  std::promise<Status> promise_;
  std::future<Status> result_ = promise_.get_future();
};

}  // namespace tidepool::memserver
