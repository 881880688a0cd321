// SimJob: one training job of the simulation: its specification, and what its weights must be at each version.
//
// One thread. Gradients are a pure function of (job, version, run, attempt, micro-batch, chunk, element), so that a step that was
// abandoned and repeated has other gradients than before: traces of the first attempt would be seen.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "shm/job_spec.h"
#include "tests/fakes/adam_model.h"

namespace tidepool::memserver {

class SimJob {
 public:
  SimJob(uint32_t number, SplitMix64* random);

  const shm::JobSpec& spec() const { return spec_; }

  float WeightAt(ChunkId chunk, uint64_t element) const;
  // As it is submitted: loss-scaled, and infinite at one place of a poisoned step.
  float GradientAt(Version version, uint32_t micro_batch, ChunkId chunk, uint64_t element) const;
  bool IsPoisoned(Version version) const;
  float loss_scale() const { return loss_scale_; }
  float learning_rate(Version version) const { return 0.01F * static_cast<float>(1 + version % 3); }

  // The states were lost or never there: the next ranks put weights again.
  void Reset();
  // The first rank of a new set of ranks.
  void BeginRun();
  // A rank was told that the open step had a gradient that is not finite.
  void BeginAttempt(uint32_t attempt);
  uint32_t attempt() const { return attempt_; }
  // The server has sealed the open step: the model takes it.
  void Seal();
  Version sealed() const { return sealed_; }
  // Weights of version `sealed()` (age 0) or the one before (age 1).
  const std::vector<std::vector<double>>& weights(uint32_t age) const { return history_[age]; }
  // Empty, or what is wrong with `values`, elements from `begin` of a chunk at `version`.
  std::string Compare(Version version, ChunkId chunk, uint64_t begin, const std::vector<float>& values, double tolerance) const;

 private:
  void TakeHistory();

  const uint32_t number_;
  shm::JobSpec spec_;
  float loss_scale_ = 1;
  std::unique_ptr<AdamModel> model_;
  std::vector<std::vector<double>> history_[2];
  Version sealed_ = 0;
  uint32_t lives_ = 0;  // how often the weights were put
  uint32_t run_ = 0;
  uint32_t attempt_ = 0;
};

}  // namespace tidepool::memserver
