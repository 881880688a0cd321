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
  int64_t NowNs() const override { return now_ns_.fetch_add(step_ns_.load()); }
  void SleepNs(int64_t duration_ns) override { Advance(duration_ns); }
  void Advance(int64_t duration_ns) { now_ns_.fetch_add(duration_ns); }
  // From now on so much time passes between any two looks at the clock.
  void AdvanceAtEachLook(int64_t step_ns) { step_ns_.store(step_ns); }

 private:
  mutable std::atomic<int64_t> now_ns_{kNsPerSecond};
  std::atomic<int64_t> step_ns_{0};
};

}  // namespace tidepool
