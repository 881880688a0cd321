// Rounds: several ways of doing the same work, timed in turn within one run, so that whatever else
// the machine does affects all of them.
//
// One thread. Each round runs every way once, beginning with a different one than the round before.
// Ratios are taken within a round, and their median over the rounds is the result: a neighbour that
// takes half the memory bandwidth for a second spoils two rounds, not the run. A round in which the
// machine changed its regime (bench/harness/regime.h) does not count, and another one is run in its
// place.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "bench/harness/regime.h"
#include "bench/harness/row.h"

namespace tidepool::bench {

class Rounds {
 public:
  // `settle_ns`: pause before each way, in which the threads of the one before (OpenMP's spin for
  // milliseconds) fall asleep.
  explicit Rounds(int64_t settle_ns = 0, RoundTrip round_trip = MeasureRoundTripNs)
      : settle_ns_(settle_ns), round_trip_(std::move(round_trip)) {}

  // Returns the number of the way. `prepare` runs before it each time, and is not timed.
  size_t AddWay(std::function<void()> way, std::function<void()> prepare = {});
  // Runs one round that is not counted, then `rounds` that are; up to as many again replace those
  // that are dropped. Where the machine is steady in none, the last one counts.
  void Run(uint64_t rounds);
  // Rounds that did not count, as the regime changed.
  uint64_t dropped() const { return dropped_; }

  // Seconds by round.
  const std::vector<double>& seconds(size_t way) const { return seconds_[way]; }
  double median(size_t way) const { return Median(seconds_[way]); }
  // By round: how many times faster `way` was than `peer`.
  std::vector<double> Faster(size_t way, size_t peer) const;
  // The one of `ways` with the lowest median: one way for all rounds, because luck would choose the
  // fastest of each round.
  size_t FastestOf(const std::vector<size_t>& ways) const;

 private:
  void RunRound(uint64_t round);
  void DropLast();
  void RunOnce(size_t way, bool counts);

  SteadyClock clock_;
  const int64_t settle_ns_;
  const RoundTrip round_trip_;
  struct Way {
    std::function<void()> run, prepare;
  };
  std::vector<Way> ways_;
  std::vector<std::vector<double>> seconds_;
  uint64_t dropped_ = 0;
};

// A row about `way` against `peer`: `ratios` by round, each multiplied by `factor` where the two do
// not do the same amount of work.
struct Comparison {
  std::string bench, row;
  double value = 0;
  std::string unit, against;
  std::vector<double> ratios;
  uint64_t dropped = 0;  // rounds
  double factor = 1;
  std::optional<double> target;
};
// Prints the row and its spread.
void AddComparison(const Comparison& comparison, RowPrinter* printer);

}  // namespace tidepool::bench
