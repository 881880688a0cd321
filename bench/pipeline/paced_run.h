// PacedRun: runs steps of a pipeline, and of ZeRO-3, on an emulated machine: one thread per GPU,
// each with the trainer's rCache and stage plan. Copies go over paced links; computing is a timed
// wait.
//
// One thread starts a run and blocks until it has ended; an error ends the program. A pipeline's
// step has the order of trainer/pipeline/staged_step.h. Steps contain no optimizer update.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "bench/pipeline/paced_machine.h"
#include "bench/pipeline/paced_ranks.h"

namespace tidepool::bench {

// Time of a pipeline's step that no overlap hides, in nanoseconds: the fetch of the first stage's
// weights, one micro-batch's forward and backward through the stages of the other GPUs, and the
// copy of the first stage's sums to host memory.
double FillNs(const PacedMachine& machine, const PacedPlan& plan);

// Runs `steps` steps of a pipeline after one that records the order of the layers. `order`: the
// mapping of stages to GPUs, from PacedPlan.
PacedResult RunPipeline(const PacedMachine& machine, const PacedPlan& plan,
                        const std::vector<uint32_t>& order, uint32_t steps, Clock* clock);

// Runs steps of ZeRO-3: each rank computes whole micro-batches and fetches all weights layer by
// layer, ahead of use, into the GPU memory that activations leave free. Gradients leave in 16 bits
// after each micro-batch. Their sum costs no further copies, so the result favours ZeRO-3.
PacedResult RunShared(const PacedMachine& machine, uint32_t steps, Clock* clock);

}  // namespace tidepool::bench
