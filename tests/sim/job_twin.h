// JobTwin: a job as it would be if nothing ever failed: its planes on plain arrays, by the same
// kernels, one whole step at a time.
//
// One thread. Knows nothing of chunk states, copies, tiles or recovery, so the server's planes can
// be compared with it bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "base/ids.h"
#include "optim/kernels/kernels.h"
#include "shm/spec/job_spec.h"

namespace tidepool::memserver {

class JobTwin {
 public:
  // Bytes as the form of the states has them; empty where the job has no such plane.
  struct Planes {
    std::vector<std::byte> master, momentum, variance, param16;
  };
  // Fills `values` for a whole chunk.
  using FillWeights = std::function<void(ChunkId chunk, std::span<float> values)>;
  using FillGradient =
      std::function<void(ChunkId chunk, uint32_t micro_batch, std::span<float> values)>;
  struct StepNumbers {
    float learning_rate = 0;
    float loss_scale = 1;
    // By parameter group, in place of the job's; and the parameters that the step leaves alone.
    std::map<uint32_t, GroupNumbers> groups = {};
    std::set<ParameterId> untouched = {};
  };

  explicit JobTwin(const shm::JobSpec& spec);

  // Makes version 0.
  void Start(const FillWeights& weights);
  // Makes the next version. False when it was skipped: a gradient was not finite.
  bool Step(const StepNumbers& numbers, const FillGradient& gradient);

  // Writes `values` as elements of the chunk lie in an rCache.
  void Encode(ChunkId chunk, std::span<const float> values, void* to) const;
  Version version() const { return version_; }
  // The planes at the present version (age 0) or at the one before (age 1).
  const Planes& planes(ChunkId chunk, uint32_t age) const { return planes_[age][chunk]; }
  // What a fetch delivers.
  std::span<const std::byte> ParameterBytes(ChunkId chunk, uint32_t age) const;

 private:
  void StoreWeights(ChunkId chunk, Planes* planes) const;
  void FillSlot(ChunkId chunk, const FillGradient& gradient);
  // False when a gradient is not finite.
  bool Judge(const StepNumbers& numbers, float* gradient_scale);
  void Update(const StepNumbers& numbers, float gradient_scale);

  const shm::JobSpec& spec_;  // outlives the twin
  const optim::Kernels& kernels_;
  std::vector<Planes> planes_[2];              // by age, then chunk
  std::vector<std::vector<std::byte>> slots_;  // gradients
  std::vector<double> norm_sums_;              // by parameter
  std::vector<float> values_;
  std::vector<std::byte> encoded_;
  Version version_ = 0;
  std::vector<uint64_t> steps_;  // by parameter: those that have changed it
};

}  // namespace tidepool::memserver
