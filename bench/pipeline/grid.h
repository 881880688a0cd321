// The grid of bench_pipeline: what is measured, fixed before the first measurement.
//
// Models and machines are those of Mobius' evaluation (Feng et al., ASPLOS 2023, section 4;
// tests/trainer/advice/paper_models.h): 13.1 GB/s a root complex, GPUs of 24 GiB that reach 40
// TFLOPS, sequences of 512 tokens, as many micro-batches as GPUs. Scales are chosen so that a step
// takes some tenths of a second here and a chunk half a millisecond.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "bench/pipeline/paced_machine.h"

namespace tidepool::bench {

// GPUs under each root complex.
using Topology = std::vector<uint32_t>;

// By model, in the order of kPaperModels: 3b, 8b, 15b, 51b.
inline constexpr std::array<Scale, 4> kScales = {{{.bytes = 1024, .times = 3},
                                                  {.bytes = 2048, .times = 6},
                                                  {.bytes = 2048, .times = 12},
                                                  {.bytes = 4096, .times = 36}}};

// Every model on each: Mobius' figures 5 to 8.
inline const std::vector<Topology> kTopologies = {{4}, {2, 2}, {1, 3}};
// The way of ZeRO-3 stands beside the pipeline on this one.
inline const Topology kSharedTopology = {4};
// Both mappings of the models in the middle: figure 10.
inline const Topology kMappingTopology = {4, 4};
inline constexpr std::array<uint32_t, 2> kMappingModels = {1, 2};
// From 2 to 8 GPUs, each half under a root complex: figure 14.
inline constexpr uint32_t kScalingModel = 2, kScalingGpusMax = 8;
// The vertical order: one GPU, and so many micro-batches.
inline constexpr uint32_t kVerticalModel = 2, kVerticalBatches = 4;

}  // namespace tidepool::bench
