// InterruptClock: the system's clock, on which a wait ends when the user has pressed Ctrl-C.
//
// All waits of a job keep their limits by the clock that they are handed. Python sees the signal
// only when the call that waits has returned; so, once a signal is a second old and something still
// sleeps, this clock goes ten days ahead: every limit has passed, the wait ends in its own error,
// and Python raises KeyboardInterrupt.
// Any thread may call the clock. Watch and Forget: the main thread.
#pragma once

#include <atomic>

#include "base/clock.h"

namespace tidepool::python {

class InterruptClock final : public Clock {
 public:
  // Notes SIGINT from here on, and hands it to the handler that there was: Python's. Does nothing
  // where there is none. Harmless when repeated.
  static void Watch();
  // Python has had its chance to raise KeyboardInterrupt.
  static void Forget();

  int64_t NowNs() const override;
  void SleepNs(int64_t duration_ns) override;
  void SleepOnWord(const std::atomic<uint32_t>* word, uint32_t expected,
                   int64_t duration_ns) override;
  void SleepOnDescriptor(int descriptor, int16_t events, int64_t duration_ns) override;

 private:
  // Goes ahead when a signal has waited long enough; true when it has.
  bool GoAhead();

  SteadyClock steady_;
  std::atomic<int64_t> ahead_ns_{0};
};

}  // namespace tidepool::python
