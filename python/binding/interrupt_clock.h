// InterruptClock: the system's clock, but waits on it end after the user has pressed Ctrl-C.
//
// All waits of a job measure their limits by the clock they are given. Python sees a signal only
// when the blocking call has returned; so, once a signal is a second old and a thread still sleeps,
// this clock jumps ten days ahead: every limit has passed, the wait ends with its own error, and
// Python raises KeyboardInterrupt. Any thread may call the clock. Watch and Forget: the main
// thread.
#pragma once

#include <atomic>

#include "base/clock.h"

namespace tidepool::python {

class InterruptClock final : public Clock {
 public:
  // Notes SIGINT from now on, and forwards it to the previous handler: Python's. Does nothing if
  // there is none. Idempotent.
  static void Watch();
  // Clears the signal: Python has had its chance to raise KeyboardInterrupt.
  static void Forget();

  int64_t NowNs() const override;
  void SleepNs(int64_t duration_ns) override;
  void SleepOnWord(const std::atomic<uint32_t>* word, uint32_t expected,
                   int64_t duration_ns) override;
  void SleepOnDescriptor(int descriptor, int16_t events, int64_t duration_ns) override;

 private:
  // Jumps ahead if a signal has waited long enough; true if so.
  bool GoAhead();

  SteadyClock steady_;
  std::atomic<int64_t> ahead_ns_{0};
};

}  // namespace tidepool::python
