// RatesCare: decides when a server measures the machine's rates: once, after its first start, when
// it has had no job for a while, and never beside a job.
//
// One thread (main). It does no measuring itself: a RatesMeasurer does, in a process of its own. A
// server that has taken over jobs does not measure, and neither does a private one, which has a job
// from the start.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/status.h"

namespace tidepool::memserver {

// The measuring process as callbacks (RatesProcess, or a test's).
struct RatesMeasurer {
  std::function<Status()> start;
  std::function<std::optional<bool>()> ended;  // once it has ended: whether it succeeded
  std::function<void()> stop;                  // returns when it is gone
};

class RatesCare {
 public:
  // Time without a job before measuring begins.
  static constexpr int64_t kQuietNs = 10 * kNsPerSecond;
  // Interval of checks for a job during a measurement, which bounds how long both run.
  static constexpr int64_t kWatchNs = 25 * kNsPerMs;
  static constexpr int64_t kPauseNs = kNsPerSecond;           // while none are
  static constexpr int64_t kBusyPauseNs = 10 * kNsPerSecond;  // while there is a job
  static constexpr int kTries = 3;

  // `wanted` false: never measures. `clock` outlives the object.
  RatesCare(RatesMeasurer measurer, bool wanted, const Clock* clock)
      : measurer_(std::move(measurer)), clock_(clock), done_(!wanted), quiet_ns_(clock->NowNs()) {}
  ~RatesCare() { Stop(); }
  RatesCare(const RatesCare&) = delete;
  RatesCare& operator=(const RatesCare&) = delete;

  // Milliseconds until Look is to be called again; -1: never.
  int pause_ms() const;
  bool measures() const { return measures_; }
  bool done() const { return done_; }
  // `busy`: the server has a job, or is ending.
  void Look(bool busy);

 private:
  void Begin();
  void Stop();
  void NoteEnd(bool well);

  const RatesMeasurer measurer_;
  const Clock* const clock_;
  bool done_ = false, measures_ = false, busy_ = false;
  int64_t quiet_ns_ = 0;  // start of the time without jobs and failures
  int failures_ = 0;
};

}  // namespace tidepool::memserver
