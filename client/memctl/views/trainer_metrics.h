// TrainerMetrics: the per-step metrics of a trainer's rank 0 (`trainer run --out DIR`:
// DIR/metrics.jsonl), for the report.
//
// One thread; value types. The file has data that memserver lacks: a trainer's rCache accesses, and
// the minimum traffic of its order (docs/decisions/013).
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace tidepool::client {

// A line of the file: one step.
struct StepMetrics {
  uint64_t step = 0;
  double seconds = 0, waited_seconds = 0;
  double loss = std::numeric_limits<double>::quiet_NaN();  // NaN: the loss was not finite
  double tokens_per_second = 0;
  std::optional<double> held_out_loss;
  // Chunks that an operator needed: still there from an earlier use, prefetched, or fetched while
  // the operator waited.
  uint64_t hits = 0, ahead = 0, misses = 0;
  uint64_t prefetches = 0, prefetches_late = 0;
  uint64_t bytes_h2d = 0;
  uint64_t bytes_h2d_least = 0;  // by Belady's rule on the recorded order; 0: unknown yet

  // All of them.
  uint64_t accesses() const { return hits + ahead + misses; }
  // The share of accesses without a fetch, whether ahead or on demand.
  double kept_rate() const;
  // The same with the minimum number of fetches by Belady's rule (counting all chunks as equally
  // large). 0 if no order is known.
  double kept_rate_best() const;
};

// The steps in order, one per line; skips a line without an end (still being written), and steps
// without accesses: those sealed but not reported by an earlier process, and step 0, which only
// evaluates. Errors: kFileUnreadable, kHandshakeBad (not a metrics file).
Result<std::vector<StepMetrics>> ReadMetrics(const std::string& path);

// The report's section about them; empty without steps.
std::string RenderMetrics(const std::vector<StepMetrics>& steps);

}  // namespace tidepool::client
