// Clock: time is handed in, so that a test or the simulator moves it (a virtual seam of the house).
//
// Any thread may call a SteadyClock. Times are nanoseconds of one process's monotonic clock; never
// compare those of two processes. A SteadyClock is made where a program is put together (main
// functions; scripts/tidy_checks/doors.py lists them), and handed to all that looks at the time or
// waits.
#pragma once

#include <atomic>
#include <cstdint>

namespace tidepool {

class Clock {
 public:
  virtual ~Clock() = default;
  // Nanoseconds since a start that is this process's own; never smaller than before.
  virtual int64_t NowNs() const = 0;
  // Returns after at least `duration_ns`; a fake moves its time instead.
  virtual void SleepNs(int64_t duration_ns) = 0;

  // Two sleeps that may end earlier: the caller looks again at what it waits for. In a fake nobody
  // acts meanwhile, so that they last as long as they may, unless it lets its world go on.
  // Ends when `*word` is no longer `expected`; who changes it calls WakeWord
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
