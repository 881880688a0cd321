// LogLimiter: at most one line per interval for an event that a peer can repeat without limit; the
// next line says how many were left out.
//
// One thread per object.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

namespace tidepool::memserver {

class LogLimiter {
 public:
  explicit LogLimiter(int64_t interval_ns) : interval_ns_(interval_ns) {}
  // The number of events left out since the last line if one may be written now, else nothing.
  std::optional<uint64_t> Allow(int64_t now_ns) {
    if (now_ns < next_ns_) {
      ++left_out_;
      return std::nullopt;
    }
    next_ns_ = now_ns + interval_ns_;
    return std::exchange(left_out_, 0);
  }

 private:
  int64_t interval_ns_;
  int64_t next_ns_ = INT64_MIN;  // the next time a line may be written
  uint64_t left_out_ = 0;
};

}  // namespace tidepool::memserver
