// UserLog: log lines that a user can cause without limit. UserLogLimiter bounds how many of them
// each user may write, so that nobody fills the log.
//
// One thread (the serve loop).
#pragma once

#include <initializer_list>
#include <string_view>

#include "base/clock.h"
#include "base/log.h"
#include "base/planted.h"
#include "memserver/control/bounds/user_log_limiter.h"

namespace tidepool::memserver {

class UserLog {
 public:
  // The clock must outlive it.
  explicit UserLog(const Clock* clock) : clock_(clock) {}

  // Writes the line unless the user has written too many; says first how many were left out.
  void Tell(uint32_t uid, LogLevel level, std::string_view message,
            std::initializer_list<LogField> fields) {
    const auto left_out = limiter_.Allow(uid, clock_->NowNs());
    if (!left_out && !TP_PLANTED("jobs.log_not_limited")) return;
    if (left_out.value_or(0) > 0)
      LogWarn("lines about the ranks and jobs of a user were left out",
              {{"uid", uid}, {"count", *left_out}});
    Log(level, message, fields);
  }

 private:
  const Clock* const clock_;
  UserLogLimiter limiter_;
};

}  // namespace tidepool::memserver
