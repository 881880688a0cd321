// Rounds: several ways of doing the same work, timed alternately in one run, so that disturbances
// of the machine affect all of them.
//
// One thread. Each round runs every way once, starting with a different one each time. Ratios are
// taken within a round, and their median over the rounds is the result: a neighbour that takes half
// the memory bandwidth for a second spoils two rounds, not the run. A round during which the regime
// changed (bench/harness/regime.h) does not count and is repeated.
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
  // `settle_ns`: pause before each way, in which the previous way's threads (OpenMP's spin for
  // milliseconds) fall asleep.
  explicit Rounds(int64_t settle_ns = 0, RoundTrip round_trip = MeasureRoundTripNs)
      : settle_ns_(settle_ns), round_trip_(std::move(round_trip)) {}

  // Adds a way and returns its number. `prepare` runs before it each time, untimed.
  size_t AddWay(std::function<void()> way, std::function<void()> prepare = {});
  // Runs one uncounted round, then `rounds` counted ones; up to as many again replace dropped ones.
  // If the machine was steady in none, the last one counts.
  void Run(uint64_t rounds);
  // Number of rounds dropped because of a regime change.
  uint64_t dropped() const { return dropped_; }

  // Seconds by round.
  const std::vector<double>& seconds(size_t way) const { return seconds_[way]; }
  double median(size_t way) const { return Median(seconds_[way]); }
  // By round: the speed of `way` relative to `peer`.
  std::vector<double> Faster(size_t way, size_t peer) const;
  // The one of `ways` with the lowest median: a single way for all rounds, because the fastest of
  // each round would be chosen by luck.
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

// A row that compares `way` with `peer`: `ratios` by round, each multiplied by `factor` if the two
// do different amounts of work.
struct Comparison {
  std::string bench, row;
  double value = 0;
  std::string unit, against;
  std::vector<double> ratios;
  uint64_t dropped = 0;  // dropped rounds
  double factor = 1;
  std::optional<double> target;
};
// Prints the row and its spread.
void AddComparison(const Comparison& comparison, RowPrinter* printer);

}  // namespace tidepool::bench
