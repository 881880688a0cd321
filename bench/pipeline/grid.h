// Grid: the points that bench_pipeline measures, fixed before the first measurement.
//
// Models and machines are those of Mobius' evaluation (Feng et al., ASPLOS 2023, section 4;
// tests/trainer/advice/paper_models.h): 13.1 GB/s per root complex, GPUs of 24 GiB that reach 40
// TFLOPS, sequences of 512 tokens, as many micro-batches as GPUs. With these scales, an emulated
// step takes some tenths of a second, and the copy of a chunk half a millisecond.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "bench/pipeline/paced_machine.h"

namespace tidepool::bench {

// Number of GPUs under each root complex.
using Topology = std::vector<uint32_t>;

// Divisors by model, in the order of kPaperModels: 3b, 8b, 15b, 51b.
inline constexpr std::array<Scale, 4> kScales = {{{.bytes = 1024, .times = 3},
                                                  {.bytes = 2048, .times = 6},
                                                  {.bytes = 2048, .times = 12},
                                                  {.bytes = 4096, .times = 36}}};

// The topologies of every model: Mobius' figures 5 to 8.
inline const std::vector<Topology> kTopologies = {{4}, {2, 2}, {1, 3}};
// The topology on which ZeRO-3 is compared with the pipeline.
inline const Topology kSharedTopology = {4};
// Cross and sequential mapping of the two medium models: figure 10.
inline const Topology kMappingTopology = {4, 4};
inline constexpr std::array<uint32_t, 2> kMappingModels = {1, 2};
// Scaling from 2 to 8 GPUs, half of them under each of two root complexes: figure 14.
inline constexpr uint32_t kScalingModel = 2, kScalingGpusMax = 8;
// The vertical order: one GPU, and the number of its micro-batches.
inline constexpr uint32_t kVerticalModel = 2, kVerticalBatches = 4;

}  // namespace tidepool::bench
