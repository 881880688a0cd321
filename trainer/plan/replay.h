// Replay: simulates an AccessSchedule in an rCache of a given number of blocks: which chunk is
// fetched when, and which chunk is evicted.
//
// Any thread; pure functions. With BeladyEviction the number of fetches is the minimum for the
// schedule, its pins and the number of blocks (MIN with required sets; tests compare it with an
// exhaustive search). The rCache carries out the steps, early if prefetching is on: a step may run
// from `earliest` on without changing any other step, so prefetching never adds a fetch.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "trainer/plan/access_schedule.h"
#include "trainer/plan/eviction_policy.h"

namespace tidepool::trainer {

inline constexpr ChunkId kNoChunk = UINT32_MAX;

// One fetch: the chunk, its victim and the time. Or an eviction alone, where fewer blocks may be in
// use from this moment on.
struct PlanStep {
  uint64_t needed_at = 0;  // the step must have started before this moment
  // The first moment at which it may start: after the last use of its victim, or after its block
  // has become free.
  uint64_t earliest = 0;
  ChunkId chunk = 0;  // the chunk that gets a block; kNoChunk: the victim's becomes free
  // The evicted chunk; kNoChunk: a free block is used, or `chunk` is resident.
  ChunkId victim = kNoChunk;
  bool fetch = true;  // false: the block is for gradients only (kBorrow)
  friend bool operator==(const PlanStep&, const PlanStep&) = default;
};

// All fetches of a pass.
struct Plan {
  std::vector<PlanStep> steps;             // in the order in which they must start
  std::vector<uint32_t> fetches_of_chunk;  // by ChunkId
  std::vector<uint32_t> submits_of_chunk;  // by ChunkId
  uint64_t fetches = 0, evictions = 0, submits = 0;
};

// Parameters of a simulation.
struct ReplaySetup {
  // By ChunkId; other chunks are resident: they need no block and are never evicted.
  std::vector<bool> evictable;
  uint64_t blocks = 0;
  // Chunks whose parameters are in the rCache at the start of the pass; at most `blocks` evictable
  // ones.
  std::vector<ChunkId> present;
  // By moment, how many blocks may be in use from it until the next one, also by steps that start
  // early (trainer/plan/moment_budget.h); empty: all.
  std::vector<uint64_t> budgets = {};
};

// Errors: kRcacheTooSmall if the schedule needs more blocks, or a moment more than its budget; the
// text has the number of blocks only, callers add bytes.
Result<Plan> Replay(const AccessSchedule& schedule, const ReplaySetup& setup,
                    EvictionPolicy* policy);
// Replay with Belady's rule.
Result<Plan> BeladySimulate(const AccessSchedule& schedule, const ReplaySetup& setup);

// Bytes that one rank's plan moves between server and rCache: one shard per fetch and per
// submission; evictions move none.
struct StepTraffic {
  uint64_t bytes_h2d = 0;
  uint64_t bytes_d2h = 0;
};
StepTraffic TrafficOf(const Plan& plan, const ChunkLayout& layout);

}  // namespace tidepool::trainer
