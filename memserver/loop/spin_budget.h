// SpinBudget: how long an idle serve loop looks for work before it sleeps: long while work comes
// often, short while it does not.
//
// The serve loop's thread; no clock of its own. Between most and a sixteenth of it: waking costs
// some 70 us, so that a gap shorter than `most` is better spun through, and a longer one is not
// worth any spinning.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tidepool::memserver {

class SpinBudget {
 public:
  // `most_ns` 0: sleeps at once, always.
  explicit SpinBudget(int64_t most_ns) : most_ns_(most_ns), now_ns_(most_ns) {}

  // How long the loop looks for work before it sleeps, now.
  int64_t ns() const { return now_ns_; }
  // After a sleep: `idle_ns` from the end of the last work to the wake-up, spinning and sleep
  // together.
  void Woke(int64_t idle_ns) {
    // A little more spinning would have caught it; or much more would not have.
    now_ns_ = idle_ns <= most_ns_ ? most_ns_ : std::max(now_ns_ / 2, most_ns_ / 16);
  }

 private:
  const int64_t most_ns_;
  int64_t now_ns_;
};

}  // namespace tidepool::memserver
