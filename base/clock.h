// Clock: time is handed in, so that a test or the simulator moves it (a virtual seam of the house).
//
// Any thread may call a SteadyClock. Times are nanoseconds of one process's monotonic clock; never
// compare those of two processes.
#pragma once

#include <cstdint>

namespace tidepool {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t NowNs() const = 0;
  // Returns after at least `duration_ns`; a fake moves its time instead.
  virtual void SleepNs(int64_t duration_ns) = 0;
};

class SteadyClock final : public Clock {
 public:
  int64_t NowNs() const override;
  void SleepNs(int64_t duration_ns) override;
};

// Seconds since 1970, for labels in files and logs only; never for durations.
int64_t WallSeconds();

inline constexpr int64_t kNsPerMs = 1'000'000;
inline constexpr int64_t kNsPerSecond = 1'000'000'000;

}  // namespace tidepool
