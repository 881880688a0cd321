// SimulateStep: one training step of one of several equal ranks as a discrete-event simulation:
// computing, two copy links, a link between ranks, and the server's updates, each serving one job
// at a time. It judges plans, so it shares no code with the planners: it has its own eviction by
// farthest next use, its own bytes, and time instead of sums.
//
// Any thread; pure. A fetch runs up, then is gathered from the other ranks; a gradient is reduced
// over the ranks, then runs down, and is updated. A chunk's block is free once its gradient has
// left. Fetches start in the order of their need, as far ahead as blocks allow.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/layout/chunk_layout.h"
#include "trainer/plan/access_schedule.h"

namespace tidepool::trainer {

// Rates of all ranks together: copies in 10^9 bytes a second, updates in 10^9 elements a second.
struct SimulatedMachine {
  double to_device = 0, from_device = 0, host_update = 0;
  double between = 0;  // sent by each rank to others; 0: at once
};

struct SimulatedStep {
  const AccessSchedule* order = nullptr;
  const ChunkLayout* layout = nullptr;  // all chunks sharded over all ranks
  uint64_t blocks = 0;
  bool whole = false;  // each rank fetches whole chunks, and gradients are all-reduced
  bool prefetches = true;
  // The server updates a chunk when its gradient comes; false: when all have come (clipping).
  bool updates_at_once = true;
  double seconds_of_use = 0;  // of computing, at each use of a chunk by an operator
};

struct SimulatedResult {
  double seconds = 0;                                  // to the end of the last update
  uint64_t fetches = 0, bytes_up = 0, bytes_down = 0;  // of one rank
  uint64_t blocks_max = 0;                             // in use at once
};

SimulatedResult SimulateStep(const SimulatedStep& step, const SimulatedMachine& machine);

}  // namespace tidepool::trainer
