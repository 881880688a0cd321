// PacedRun: steps of a pipeline, and of the ZeRO-3 way, on an emulated machine: a thread a GPU,
// the trainer's rCache and stage plan in each, copies over paced links, computing as timed waits.
//
// One thread starts a run and waits for it; a run that cannot go on ends the program. The order of
// a pipeline's step is that of trainer/pipeline/staged_step.h. Optimizer updates are not in a step.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "bench/pipeline/paced_machine.h"
#include "bench/pipeline/paced_ranks.h"

namespace tidepool::bench {

// What of a pipeline's step nothing can hide: the first stage's weights come; one micro-batch goes
// through the stages of the other GPUs, there and back; the first stage's sums leave.
double FillNs(const PacedMachine& machine, const PacedPlan& plan);

// Steps of a pipeline, behind one that records the order. `order`: of GPUs, as PacedPlan has it.
PacedResult RunPipeline(const PacedMachine& machine, const PacedPlan& plan,
                        const std::vector<uint32_t>& order, uint32_t steps, Clock* clock);

// Each rank computes whole micro-batches of its own, and all weights come to all ranks, layer by
// layer, fetched ahead into what a GPU has beside activations. Gradients leave in 16 bits, once a
// micro-batch, and nothing comes for their sum: a bound in favour of that way.
PacedResult RunShared(const PacedMachine& machine, uint32_t steps, Clock* clock);

}  // namespace tidepool::bench
