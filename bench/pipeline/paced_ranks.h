// PacedRanks: runs the ranks of an emulated machine as threads, step by step, and measures their
// computing and copies.
//
// One thread creates it and calls Run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "bench/pipeline/paced_links.h"
#include "bench/pipeline/paced_machine.h"
#include "bench/pipeline/rank_cache.h"

namespace tidepool::bench {

// Measurements of a run. `step_ns` is the median over its steps; the other fields are those of the
// last step.
struct PacedResult {
  double step_ns = 0;
  double compute_ns = 0;  // of the rank that computes longest
  double link_ns = 0;     // the busiest link's bytes, divided by its rate
  uint64_t bytes_up = 0, bytes_down = 0;
  uint64_t bytes_of_complex_max = 0;  // of the busiest root complex, both directions
  // Share of the step in which a rank has copies but does not compute, averaged over the ranks.
  double exposed = 0;
  // Share of bytes copied at more than 12 / 13.1 of the link's rate. A copy's time begins with its
  // request, or with the end of the GPU's previous copy in its direction if that is later.
  double fast = 0;
};

class PacedRanks {
 public:
  // Both arguments must outlive the object.
  PacedRanks(const PacedMachine* machine, Clock* clock);

  // The links that the ranks copy over; owned by this object.
  PacedLinks* links() { return &links_; }
  // Runs `steps` steps after one that is not counted; `caches`: by rank. Each rank's thread begins
  // the step in its cache, calls `step` and ends the step in its cache; all ranks begin together.
  // Blocks until the last step has ended.
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
