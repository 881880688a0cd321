// CommandTicket: where the admin thread waits for the answer to a change that it sent to the serve
// loop.
//
// Made and awaited by the admin thread (or by the main thread, for a reload), answered once by the
// control thread, or by the main thread if that did the work. The loop only passes it on, so it
// wakes nobody itself.
#pragma once

#include <chrono>
#include <cstdint>
#include <future>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "memserver/control/access.h"

namespace tidepool::memserver {

// The user who asks for a change, as identified by the kernel.
struct AdminCaller {
  uint32_t uid = 0;
  int32_t pid = 0;
  AdminLevel level = AdminLevel::kNone;
  // False for jobs of other users, which are treated as absent; operators see all.
  bool MaySee(uint32_t owner) const { return level >= AdminLevel::kOperator || owner == uid; }
};

class CommandTicket {
 public:
  // Answers the ticket. `changed` names what changed, where the command alone does not say so.
  void Answer(Status result, std::vector<std::string> changed = {}) {
    promise_.set_value({std::move(result), std::move(changed)});
  }
  // The answer, once; nothing if it did not come in time. The change may still be made then.
  std::optional<Status> Wait(int64_t timeout_ms) {
    if (result_.wait_for(std::chrono::milliseconds(timeout_ms)) != std::future_status::ready)
      return std::nullopt;
    Answered answered = result_.get();
    changed_ = std::move(answered.changed);
    return std::move(answered.result);
  }
  // What changed, from the answer that Wait returned.
  const std::vector<std::string>& changed() const { return changed_; }

 private:
  struct Answered {
    Status result;
    std::vector<std::string> changed;
  };
  std::promise<Answered> promise_;
  std::future<Answered> result_ = promise_.get_future();
  std::vector<std::string> changed_;
};

}  // namespace tidepool::memserver
