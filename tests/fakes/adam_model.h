// AdamModel: every update rule on plain vectors of doubles, written from the papers, to compare the
// server's weights with.
//
// Independent of optim/ on purpose. One thread.
#pragma once

#include <cstdint>
#include <vector>

#include "shm/spec/job_spec.h"

namespace tidepool::memserver {

class AdamModel {
 public:
  explicit AdamModel(const shm::JobSpec& spec);

  // All values of a chunk, padding included.
  std::vector<double>& weights(ChunkId chunk) { return chunks_[chunk].weights; }
  std::vector<double>& gradients(ChunkId chunk) { return chunks_[chunk].gradients; }
  // One step with `gradients` (summed over micro-batches, still loss-scaled). Returns the norm of
  // the unscaled gradients. Where a gradient is not finite nothing changes.
  double Step(double learning_rate, double loss_scale);

 private:
  struct ChunkValues {
    std::vector<double> weights, gradients, momentum, variance;
  };
  double Norm(double loss_scale) const;
  void UpdateElement(ChunkValues* values, uint64_t i, double gradient,
                     const shm::ParameterGroup& group);

  const shm::JobSpec spec_;
  std::vector<ChunkValues> chunks_;
  double learning_rate_ = 0;
  uint64_t steps_ = 0;
};

}  // namespace tidepool::memserver
