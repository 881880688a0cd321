// Replay: runs an AccessSchedule through an rCache of so many blocks on paper: which chunk is
// fetched when, and who gives up its block.
//
// Any thread; pure functions. With BeladyEviction the number of fetches is the smallest possible
// one for the schedule, its pins and the number of blocks (MIN with required sets; tests compare it
// with an exhaustive search). The steps are what the rCache carries out, early where prefetching is
// on: a step may run from `earliest` on without changing any other step, so prefetching never adds
// a fetch.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "trainer/plan/access_schedule.h"
#include "trainer/plan/eviction_policy.h"

namespace tidepool::trainer {

inline constexpr ChunkId kNoChunk = UINT32_MAX;

// One fetch: of which chunk, into which block, and when.
struct PlanStep {
  uint64_t needed_at = 0;  // the moment before which the step must have been started
  // The first moment at which it may be started: the last use of its victim, or the freeing of its
  // block, has passed.
  uint64_t earliest = 0;
  ChunkId chunk = 0;  // gets a block
  // The chunk that gives up its block; kNoChunk: a free block is taken, or `chunk` is resident.
  ChunkId victim = kNoChunk;
  bool fetch = true;  // false: the block is for gradients only (kBorrow)
  friend bool operator==(const PlanStep&, const PlanStep&) = default;
};

// All fetches of a pass.
struct Plan {
  std::vector<PlanStep> steps;             // in the order in which they must be started
  std::vector<uint32_t> fetches_of_chunk;  // by ChunkId
  std::vector<uint32_t> submits_of_chunk;  // by ChunkId
  uint64_t fetches = 0, evictions = 0, submits = 0;
};

// The rCache on paper.
struct ReplaySetup {
  // By ChunkId; the others are resident: they need no block and are never evicted.
  std::vector<bool> evictable;
  uint64_t blocks = 0;
  // Chunks whose parameters are in the rCache when the pass begins; at most `blocks` evictable
  // ones.
  std::vector<ChunkId> present;
};

// Errors: kRcacheTooSmall when the schedule needs more blocks; the text names the number of blocks
// only, callers add bytes.
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
