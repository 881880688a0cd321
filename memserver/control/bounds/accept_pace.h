// AcceptPace: how fast clients are accepted. A client that leaves before its greeting is complete
// costs the control thread a turn. After a burst of such clients new ones are accepted slowly,
// until the burst is forgotten. Attached ranks do not notice; a new client waits in the socket's
// backlog for less than a second.
//
// One thread (control).
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace tidepool::memserver {

class AcceptPace {
 public:
  static constexpr uint32_t kAcceptsAtOnce = 16;
  static constexpr uint32_t kAcceptsSlowly = 4;  // between two pauses
  static constexpr int64_t kPauseNs = 10 * kNsPerMs;
  // Clients without a greeting after which all clients are accepted slowly.
  static constexpr int64_t kBurst = 64;
  static constexpr int64_t kForgottenNs = 20 * kNsPerMs;  // time until one of them is forgotten

  // A connection ended before its greeting was complete, or was refused.
  void NoteBroken(int64_t now_ns) {
    remembered_ns_ = std::min(Remembered(now_ns) + kForgottenNs, 2 * kBurst * kForgottenNs);
    at_ns_ = now_ns;
  }
  bool slow(int64_t now_ns) const { return Remembered(now_ns) > kBurst * kForgottenNs; }

 private:
  int64_t Remembered(int64_t now_ns) const {
    return std::max<int64_t>(remembered_ns_ - (now_ns - at_ns_), 0);
  }
  int64_t remembered_ns_ = 0;  // time until all are forgotten, as of at_ns_
  int64_t at_ns_ = 0;
};

}  // namespace tidepool::memserver
