// A model of dense layers, the same on all ranks, and of experts, which belong to fewer: trained
// through a whole memory server with ranks as threads, each parameter in its data group, and in
// plain LibTorch with everything in one process.
//
// Each of three ranks uses the dense layers and one set of experts: rank 0 one of its own, ranks 1
// and 2 one together. The loss is the mean over all ranks' batches.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "trainer/plan/replay.h"

namespace tidepool::trainer {

struct ExpertRig {
  uint32_t steps = 12;
  uint32_t micro_batches = 2;
  float clip = 0.05f;   // below every step's norm
  uint64_t blocks = 3;  // of each rank's rCache; it uses six chunks
};

struct ExpertResult {
  std::vector<double> losses;      // by step; then the loss on other batches after the last one
  std::vector<double> grad_norms;  // by step
  std::map<std::string, std::vector<float>> weights;
  // By rank.
  // Then by step; planned is zero while recording.
  std::vector<std::vector<StepTraffic>> planned, moved;
  std::vector<uint64_t> evictions;
};

Result<ExpertResult> TrainExpertsThroughServer(const ExpertRig& rig);
ExpertResult TrainExpertsPlain(const ExpertRig& rig);

}  // namespace tidepool::trainer
