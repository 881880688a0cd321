// SpinBudget: how long an idle serve loop polls for work before it sleeps: long while work comes
// often, short while it does not.
//
// The serve loop's thread; no clock of its own. The budget lies between `most` and a sixteenth of
// it: a wake-up costs about 70 us, so a gap shorter than `most` is better spun through, and a
// longer one is not worth any spinning.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tidepool::memserver {

class SpinBudget {
 public:
  // `most_ns` 0: always sleep at once.
  explicit SpinBudget(int64_t most_ns) : most_ns_(most_ns), now_ns_(most_ns) {}

  // The current budget.
  int64_t ns() const { return now_ns_; }
  // Called after a sleep. `idle_ns`: from the end of the last work to the wake-up, spinning and
  // sleep together.
  void Woke(int64_t idle_ns) {
    // A little more spinning would have caught it, or much more would not have.
    now_ns_ = idle_ns <= most_ns_ ? most_ns_ : std::max(now_ns_ / 2, most_ns_ / 16);
  }

 private:
  const int64_t most_ns_;
  int64_t now_ns_;
};

}  // namespace tidepool::memserver
