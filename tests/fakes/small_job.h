// SmallJob: the job of tests whose states leave the host: its spec, its steps, and weights to
// compare.
//
// The test's thread. Tests of spilled states, spilled weights, GPUs and demotions train the same
// job in two worlds, one of which holds everything in its pool, and expect the same bits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/fakes/small_trainer.h"

namespace tidepool::memserver {

// Chunks in order.
using Weights = std::vector<std::vector<float>>;

struct SmallJobShape {
  std::string name = "job";
  DType dtype = DType::kBF16;
  uint32_t world = 1;
  uint32_t micro_batches = 1;
  uint64_t chunk_elements = 192;  // per rank
  uint32_t chunks = 4;
  uint32_t loss_scaling = 0;
  uint32_t f32_chunks = 0;
};

// A spec with gradients that are clipped, and an rCache of one chunk.
shm::JobSpec SmallJob(const SmallJobShape& shape);

// Bit for bit.
bool Same(const Weights& a, const Weights& b);

// Steps `from` to `to` - 1 of the job; each third is skipped where the job scales its loss. False
// when one was refused.
bool TrainSteps(SmallTrainer* trainer, uint64_t from, uint64_t to);

}  // namespace tidepool::memserver
