// Clock: time is passed in, so that a test or the simulator controls it (a virtual seam).
//
// Any thread may call a SteadyClock. Times are nanoseconds of one process's monotonic clock; never
// compare those of two processes. A SteadyClock is made only where a program is composed (main
// functions; scripts/tidy_checks/doors.py lists them), and passed to all code that reads the time
// or waits.
#pragma once

#include <atomic>
#include <cstdint>

namespace tidepool {

class Clock {
 public:
  virtual ~Clock() = default;
  // Nanoseconds since an arbitrary start of this process; never smaller than before.
  virtual int64_t NowNs() const = 0;
  // Returns after at least `duration_ns`; a fake advances its time instead.
  virtual void SleepNs(int64_t duration_ns) = 0;

  // Two sleeps that may end early: the caller rechecks its condition. In a fake nobody acts
  // meanwhile, so they last for `duration_ns`, unless the fake lets its world run. The first ends
  // when `*word` is no longer `expected`; code that changes it calls WakeWord
  // (base/system/futex.h).
  virtual void SleepOnWord(const std::atomic<uint32_t>* word, uint32_t expected,
                           int64_t duration_ns);
  // Ends when the descriptor has one of `events` (POLLIN, POLLOUT), an error or a hang-up.
  virtual void SleepOnDescriptor(int descriptor, int16_t events, int64_t duration_ns);
};

// The system's monotonic clock.
class SteadyClock final : public Clock {
 public:
  int64_t NowNs() const override;
  void SleepNs(int64_t duration_ns) override;
  void SleepOnWord(const std::atomic<uint32_t>* word, uint32_t expected,
                   int64_t duration_ns) override;
  void SleepOnDescriptor(int descriptor, int16_t events, int64_t duration_ns) override;
};

// Seconds since 1970, for labels in files and logs only; never for durations.
int64_t WallSeconds();

inline constexpr int64_t kNsPerMs = 1'000'000;
inline constexpr int64_t kNsPerSecond = 1'000'000'000;

}  // namespace tidepool
