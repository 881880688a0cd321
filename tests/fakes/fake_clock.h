// FakeClock: time that only a test moves.
//
// Any thread. Starts at one second, so that "never" (0) is not a time.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace tidepool {

class FakeClock final : public Clock {
 public:
  int64_t NowNs() const override { return now_ns_.load(); }
  void SleepNs(int64_t duration_ns) override { Advance(duration_ns); }
  void Advance(int64_t duration_ns) { now_ns_.fetch_add(duration_ns); }

 private:
  std::atomic<int64_t> now_ns_{kNsPerSecond};
};

}  // namespace tidepool
