// SmallTrainer: all ranks of one job, driven in lock-step by a test over a ServeWorld, with an
// AdamModel beside them.
//
// One thread. Weights and gradients are a pure function of (seed, parameter, element of the
// parameter, step, micro-batch), the same for every way of chunking and sharding. Padding has
// values too, so that a test sees whether anybody touches it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/fakes/adam_model.h"
#include "tests/fakes/serve_world.h"

namespace tidepool::memserver {

struct StepPlan {
  float learning_rate = 0.01F;
  float loss_scale = 1;
  uint64_t seed = 1;
  // A gradient that is not finite: infinity at this element of chunk 0 (in the last micro-batch),
  // if set.
  bool poisoned = false;
  // What every rank says of the step: parameters that no backward has reached, and numbers of
  // groups. The model knows nothing of either.
  std::set<ParameterId> untouched = {};
  std::map<uint32_t, GroupNumbers> groups = {};
  // Gradients of zeros, by micro-batch and chunk; submitted as bytes or without.
  std::set<std::pair<uint32_t, ChunkId>> zeros = {};
  bool zeros_as_bytes = false;
};

class SmallTrainer {
 public:
  SmallTrainer(ServeWorld* world, shm::JobSpec spec);

  // Every rank joins; false when one was refused.
  bool JoinAll(uint32_t uid = 1000);
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
  // The same by parameter, without padding.
  std::vector<std::vector<float>> FetchParameters();
  // FetchAll against the model; the text names the first element that is further off than
  // `tolerance`, empty when there is none.
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
  struct Place {             // what an element of a chunk is
    uint64_t parameter = 0;  // its number; behind the last one for padding
    uint64_t element = 0;
  };
  std::vector<float> ShardGradient(const StepPlan& plan, ChunkId chunk, Rank rank,
                                   uint32_t micro_batch) const;
  float GradientAt(const StepPlan& plan, uint32_t micro_batch, ChunkId chunk,
                   uint64_t element) const;
  void SetModelGradients(const StepPlan& plan);

  ServeWorld* const world_;
  const shm::JobSpec spec_;
  std::vector<std::vector<Place>> places_;  // by chunk and element
  std::vector<std::unique_ptr<FakeRank>> ranks_;
  AdamModel model_;
  Version version_ = 0;
};

}  // namespace tidepool::memserver
