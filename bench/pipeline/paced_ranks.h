// PacedRanks: the ranks of an emulated machine as threads that go through steps together, and what
// they did, measured.
//
// One thread makes it and calls Run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "bench/pipeline/paced_links.h"
#include "bench/pipeline/paced_machine.h"
#include "bench/pipeline/rank_cache.h"

namespace tidepool::bench {

// What a step took and moved: the median step's time, the last step's rest.
struct PacedResult {
  double step_ns = 0;
  double compute_ns = 0;  // of the rank that computes most
  double link_ns = 0;     // bytes over the busiest link's direction, by its rate
  uint64_t bytes_up = 0, bytes_down = 0;
  uint64_t bytes_of_complex_max = 0;  // both directions of the root complex that has most
  // The share of a step in which an average rank has something copied and computes nothing.
  double exposed = 0;
  // The share of all bytes that came with more than 12 / 13.1 of their link's rate, from when the
  // GPU's copy before had ended and this one was asked for.
  double fast = 0;
};

class PacedRanks {
 public:
  // Both outlive it.
  PacedRanks(const PacedMachine* machine, Clock* clock);

  // What copies go over; they end with it.
  PacedLinks* links() { return &links_; }
  // A rank's thread, step by step: `step` is called once for each rank and step, and begins and
  // ends the step of the cache that `caches` has for the rank. The first step does not count.
  PacedResult Run(const std::vector<std::unique_ptr<RankCache>>& caches, uint32_t steps,
                  const std::function<void(uint32_t gpu, uint64_t step)>& step);

 private:
  PacedResult Measured(const std::vector<std::unique_ptr<RankCache>>& caches,
                       std::vector<double> step_ns, const std::vector<CopyRecord>& copies) const;

  const PacedMachine& machine_;
  Clock* const clock_;
  PacedLinks links_;
};

}  // namespace tidepool::bench
