#include "bench/harness/rounds.h"

#include <algorithm>
#include <utility>

namespace tidepool::bench {

size_t Rounds::AddWay(std::function<void()> way, std::function<void()> prepare) {
  ways_.push_back({std::move(way), std::move(prepare)});
  seconds_.emplace_back();
  return ways_.size() - 1;
}

void Rounds::Run(uint64_t rounds) {
  RunRound(0);
  double before = round_trip_();
  uint64_t counted = 0;
  for (uint64_t round = 1; counted < rounds && round <= 2 * rounds; ++round) {
    RunRound(round);
    const double after = round_trip_();
    const bool last_hope = counted == 0 && round == 2 * rounds;
    SameRegime(before, after) || last_hope ? void(++counted) : DropLast();
    before = after;
  }
}

void Rounds::RunRound(uint64_t round) {
  for (size_t i = 0; i < ways_.size(); ++i) RunOnce((round + i) % ways_.size(), round > 0);
}

void Rounds::DropLast() {
  for (std::vector<double>& of_way : seconds_) of_way.pop_back();
  ++dropped_;
}

void Rounds::RunOnce(size_t way, bool counts) {
  if (ways_[way].prepare) ways_[way].prepare();
  if (settle_ns_ > 0) clock_.SleepNs(settle_ns_);
  const int64_t start = clock_.NowNs();
  ways_[way].run();
  const int64_t end = clock_.NowNs();
  if (counts) seconds_[way].push_back(static_cast<double>(end - start) / kNsPerSecond);
}

std::vector<double> Rounds::Faster(size_t way, size_t peer) const {
  std::vector<double> ratios;
  for (size_t round = 0; round < seconds_[way].size(); ++round)
    ratios.push_back(seconds_[peer][round] / seconds_[way][round]);
  return ratios;
}

size_t Rounds::FastestOf(const std::vector<size_t>& ways) const {
  return *std::min_element(ways.begin(), ways.end(), [this](size_t one, size_t other) {
    return median(one) < median(other);
  });
}

void AddComparison(const Comparison& comparison, RowPrinter* printer) {
  std::vector<double> ratios = comparison.ratios;
  for (double& ratio : ratios) ratio *= comparison.factor;
  printer->Add({.bench = comparison.bench,
                .row = comparison.row,
                .value = comparison.value,
                .unit = comparison.unit,
                .against = comparison.against,
                .ratio = Median(ratios),
                .target = comparison.target},
               SpreadOf(ratios), comparison.dropped);
}

}  // namespace tidepool::bench
