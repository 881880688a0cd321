// RoutedStep: training steps of a model with experts on one rank, with the trainer's rCache, plan
// and prefetching. Copies are real and go over links of a fixed rate; computing is a timed wait.
//
// One thread. Errors end the program. Operators, memserver and updates are not in it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "bench/moe/traces.h"
#include "bench/pipeline/linked_chunks.h"
#include "trainer/cache/parameter_cache.h"

namespace tidepool::bench {

// One rank's model, routing and link.
struct RoutedSetup {
  const RoutingTrace* trace = nullptr;
  bool leaves_out = true;          // experts without tokens
  uint64_t blocks = 0;             // of the rCache
  uint64_t compute_ns = 0;         // of a step, divided among its operators by their tokens
  double bytes_per_ns = 1;         // of the link, in each direction
  uint64_t chunk_bytes = 1 << 20;  // of an expert, and of all else of a block
  uint32_t steps = 3;              // behind one that records the order, and one more
};

// What was measured.
struct RoutedResult {
  double step_ns = 0;            // median
  uint64_t fetched_bytes = 0;    // of one step
  uint64_t handed_in_bytes = 0;  // of one step
};

// The bytes that a step needs: each chunk that is used comes for forward and for backward, and
// leaves once; with the experts without tokens, if `all`.
uint64_t FetchedTheory(const RoutingTrace& trace, uint64_t chunk_bytes, bool all);

// Runs the steps; each use of a chunk checks its content.
RoutedResult RunRouted(const RoutedSetup& setup, Clock* clock);

}  // namespace tidepool::bench
