// SmallTrainer: all ranks of one job, driven in lock-step by a test over a ServeWorld, with an AdamModel beside them.
//
// One thread. Gradients of a step are a pure function of (seed, chunk, element, step, micro-batch), the same for every way of sharding.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/fakes/adam_model.h"
#include "tests/fakes/serve_world.h"

namespace tidepool::memserver {

struct StepPlan {
  float learning_rate = 0.01F;
  float loss_scale = 1;
  uint64_t seed = 1;
  // A gradient that is not finite: infinity at this element of chunk 0 (in the last micro-batch), if set.
  bool poisoned = false;
};

class SmallTrainer {
 public:
  SmallTrainer(ServeWorld* world, shm::JobSpec spec);

  // Every rank joins; false when one was refused.
  bool JoinAll();
  // Every rank puts its shards, in two parts each.
  void PutWeights(uint64_t seed);
  // Every rank submits every gradient of the open step; ranks take turns, rank `first` begins.
  void Submit(const StepPlan& plan, Rank first = 0);
  // Every rank ends the step; rank 0's answer. All ranks get the same.
  shm::Completion EndStep(const StepPlan& plan);
  // Submit, EndStep, and the model's step.
  shm::Completion Step(const StepPlan& plan);
  // All chunks at the present version, gathered from the ranks' shards.
  std::vector<std::vector<float>> FetchAll();
  // FetchAll against the model; the text names the first element that is further off than `tolerance`, empty when there is none.
  std::string Compare(double tolerance);
  // Every rank says goodbye.
  void LeaveAll();

  FakeRank& rank(Rank rank) { return *ranks_[rank]; }
  std::vector<std::unique_ptr<FakeRank>>& ranks() { return ranks_; }
  const shm::JobSpec& spec() const { return spec_; }
  AdamModel& model() { return model_; }
  Version version() const { return version_; }
  void set_version(Version version) { version_ = version; }

 private:
  std::vector<float> ShardGradient(const StepPlan& plan, ChunkId chunk, Rank rank, uint32_t micro_batch) const;
  void SetModelGradients(const StepPlan& plan);

  ServeWorld* const world_;
  const shm::JobSpec spec_;
  std::vector<std::unique_ptr<FakeRank>> ranks_;
  AdamModel model_;
  Version version_ = 0;
};

}  // namespace tidepool::memserver
