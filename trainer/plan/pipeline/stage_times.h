// StageTimes: the earliest time at which each stage computes each micro-batch, by the constraints
// of Mobius' mixed-integer program (Feng et al., ASPLOS 2023, section 3.2), and so the time of a
// step.
//
// Any thread; pure. Symbols and units: trainer/plan/pipeline/stage_table.h.
// The paper prints several constraints wrongly. They are read here as follows, for stages 1..S:
//   (3)  minimise t^b_(1,M) + T^b_1
//   (4)  S_j <= G, forward and backward
//   (5)  P^f_j <= G - S^f_(j-N) for j > N; P^b_j <= G - S^b_(j+N) for j <= S - N
//   (6)  P^f_j <= B D^f_(j-N), P^b_j <= B D^b_(j+N) for the same j; P_j <= what is uploaded
//   (7)  D_j = t_(j,M) + T_j - t_(j,1)
//   (8)  t^f_(j,m) >= t^f_(j-1,m) + T^f_(j-1) + a_(j-1) / B; backward likewise from j+1
//   (9)  t^f_(j,1) >= t^f_(j-N,M) + T^f_(j-N) + (W_j - P^f_j) / B for j > N, and >= W_j / B for the
//        others; t^b_(j,1) likewise behind j+N for j <= S - N, with the first saved input beside
//        the weights: W_j + a_(j-1)
//   (10) t_(j,m) >= t_(j,m-1) + T_j
//   (11) t^b_(S,1) >= t^f_(S,M) + T^f_S
// The last N stages stay in place from forward to backward. B is the rate of one GPU that copies
// alone: contention is handled by the mapping (trainer/plan/pipeline/stage_mapping.h). P_j need not
// be searched: by (5) to (7) the largest is best, and (9) becomes three lower bounds,
//   t_(j,1) >= max(end of the stage before, that + (W_j - R) / B, its start + W_j / B),
// which grow monotonically with other times. So the earliest times are optimal for given stages.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trainer/plan/pipeline/stage_table.h"

namespace tidepool::trainer {

// Start times, by stage and micro-batch.
struct StageTimes {
  std::vector<std::vector<int64_t>> forward, backward;
  int64_t forward_end_ns = 0;
  int64_t step_ns = 0;  // (3)
};

// Requires stages that cover all layers and fit.
StageTimes TimesOf(const PipelineTask& task, std::span<const Stage> stages);

}  // namespace tidepool::trainer
