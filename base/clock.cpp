#include "base/clock.h"

#include <poll.h>

#include <algorithm>
#include <ctime>

#include "base/hot.h"
#include "base/system/futex.h"

namespace tidepool {

void Clock::SleepOnWord(const std::atomic<uint32_t>* word, uint32_t expected, int64_t duration_ns) {
  if (word->load(std::memory_order_seq_cst) == expected) SleepNs(duration_ns);
}

void Clock::SleepOnDescriptor(int descriptor, int16_t events, int64_t duration_ns) {
  pollfd entry{descriptor, events, 0};
  if (poll(&entry, 1, 0) == 0) SleepNs(duration_ns);
}

TP_HOT int64_t SteadyClock::NowNs() const {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<int64_t>(now.tv_sec) * kNsPerSecond + now.tv_nsec;
}

void SteadyClock::SleepNs(int64_t duration_ns) {
  timespec left{duration_ns / kNsPerSecond, duration_ns % kNsPerSecond};
  while (nanosleep(&left, &left) != 0) {
  }
}

void SteadyClock::SleepOnWord(const std::atomic<uint32_t>* word, uint32_t expected,
                              int64_t duration_ns) {
  WaitOnWord(word, expected, duration_ns);
}

void SteadyClock::SleepOnDescriptor(int descriptor, int16_t events, int64_t duration_ns) {
  constexpr int64_t kLongestMs = 60'000;  // the caller checks again
  const int64_t ms = (duration_ns + kNsPerMs - 1) / kNsPerMs;
  pollfd entry{descriptor, events, 0};
  static_cast<void>(poll(&entry, 1, static_cast<int>(std::clamp<int64_t>(ms, 0, kLongestMs))));
}

int64_t WallSeconds() {
  return static_cast<int64_t>(time(nullptr));
}

}  // namespace tidepool
