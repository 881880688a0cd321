// TrainerMetrics: what rank 0 of a trainer writes about each step (`trainer run --out DIR`:
// DIR/metrics.jsonl), read for the report.
//
// One thread; value types. This file has what memserver does not know: how often a trainer looked
// into its rCache, and the least traffic of its order (docs/decisions/013).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace tidepool::client {

// A line of the file: one step.
struct StepMetrics {
  uint64_t step = 0;
  double seconds = 0, waited_seconds = 0;
  // Chunks that an operator needed: they had stayed since an earlier use, had been fetched
  // ahead, or were fetched because it waited for them.
  uint64_t hits = 0, ahead = 0, misses = 0;
  uint64_t prefetches = 0, prefetches_late = 0;
  uint64_t bytes_h2d = 0;
  uint64_t bytes_h2d_least = 0;  // by Belady's rule on the recorded order; 0: not known yet

  // All of them.
  uint64_t accesses() const { return hits + ahead + misses; }
  // The share of all accesses for which nothing was fetched, ahead or at need.
  double kept_rate() const;
  // The same, if the fetches were as few as Belady's rule makes them (all chunks counted as equally
  // large). 0 where no order is known.
  double kept_rate_best() const;
};

// The steps in order, one a line; a line without an end (the trainer is writing it) is skipped.
// Steps without accesses are left out: those that a process before has sealed and not reported, and
// step 0, which only evaluates. Errors: kFileUnreadable, kHandshakeBad (another file).
Result<std::vector<StepMetrics>> ReadMetrics(const std::string& path);

// The part of the report about them; empty where there are none.
std::string RenderMetrics(const std::vector<StepMetrics>& steps);

}  // namespace tidepool::client
