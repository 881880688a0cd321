#include "base/clock.h"

#include <ctime>

namespace tidepool {

int64_t SteadyClock::NowNs() const {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<int64_t>(now.tv_sec) * kNsPerSecond + now.tv_nsec;
}

void SteadyClock::SleepNs(int64_t duration_ns) {
  timespec left{duration_ns / kNsPerSecond, duration_ns % kNsPerSecond};
  while (nanosleep(&left, &left) != 0) {
  }
}

int64_t WallSeconds() {
  return static_cast<int64_t>(time(nullptr));
}

}  // namespace tidepool
