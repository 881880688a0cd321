// Rounds: several ways of doing the same work, timed in turn within one run, so that whatever else the machine does meets all of them.
//
// One thread. Each round runs every way once, beginning with another one than the round before. Ratios are taken within a round, and their
// median over the rounds is the result: a neighbour that takes half the memory for a second spoils two rounds, not the run.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bench/row.h"

namespace tidepool::bench {

class Rounds {
 public:
  // `settle_ns`: pause before each way, in which the threads of the one before (OpenMP's spin for milliseconds) fall asleep.
  explicit Rounds(int64_t settle_ns = 0) : settle_ns_(settle_ns) {}

  // The number by which the way is known. `prepare` runs before it each time, and is not timed.
  size_t AddWay(std::function<void()> way, std::function<void()> prepare = {});
  // One round that is not counted, then `rounds` that are.
  void Run(uint64_t rounds);

  // Seconds by round.
  const std::vector<double>& seconds(size_t way) const { return seconds_[way]; }
  double median(size_t way) const { return Median(seconds_[way]); }
  // Of each round: how many times faster `way` was than `peer`.
  std::vector<double> Faster(size_t way, size_t peer) const;
  // That of `ways` with the lowest median: one way for all rounds, as the fastest of each round would be chosen by its luck.
  size_t FastestOf(const std::vector<size_t>& ways) const;

 private:
  void RunOnce(size_t way, bool counts);

  SteadyClock clock_;
  const int64_t settle_ns_;
  struct Way {
    std::function<void()> run, prepare;
  };
  std::vector<Way> ways_;
  std::vector<std::vector<double>> seconds_;
};

// A row about `way` against `peer`: `ratios` by round, each multiplied by `factor` where the two do not do the same amount of work.
struct Comparison {
  std::string bench, row;
  double value = 0;
  std::string unit, against;
  std::vector<double> ratios;
  double factor = 1;
  std::optional<double> target;
};
void AddComparison(const Comparison& comparison, RowPrinter* printer);

}  // namespace tidepool::bench
