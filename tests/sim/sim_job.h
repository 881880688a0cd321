// SimJob: one training job of the simulation: its specification, and what its planes must be at
// each version.
//
// One thread. Gradients are a pure function of (job, life, version, attempt, micro-batch, chunk,
// element), where the attempt is that of the server's open step: a step that was abandoned and
// repeated has other gradients than before, so traces of the first try show.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/units.h"
#include "memserver/jobs/job.h"
#include "shm/spec/job_spec.h"
#include "tests/sim/fault_plan.h"
#include "tests/sim/job_twin.h"

namespace tidepool::memserver {

class SimJob {
 public:
  // Frozen chunks have one of a few contents, so that jobs share them.
  static constexpr uint64_t kFrozenContents = 3, kFrozenBytes = 12 * kKiB;
  static const std::vector<std::byte>& FrozenContent(uint64_t content);
  // The content of a frozen chunk with this name.
  static const std::vector<std::byte>& ContentOf(const ContentHash& name);

  SimJob(uint32_t number, const FaultPlan& plan, bool frozen, SplitMix64* random);

  const shm::JobSpec& spec() const { return spec_; }
  // True if every chunk belongs to some of the ranks only, as a pipeline's stages do.
  bool IsPipeline() const;
  float loss_scale() const { return loss_scale_; }
  float learning_rate(Version version) const { return 0.01F * static_cast<float>(1 + version % 3); }
  // The gradient of a rank's shard, as submitted in the open attempt: loss-scaled, and infinite at
  // one place of a poisoned step.
  void FillGradient(Version version, uint32_t micro_batch, ChunkId chunk, uint64_t begin,
                    std::span<float> values) const;
  // True if that gradient is all zeros, as an expert's without tokens.
  bool IsZeros(Version version, uint32_t micro_batch, ChunkId chunk) const;
  // What a rank says of the open step besides its end, in the open attempt; most jobs say nothing
  // for some steps, and half of them never do.
  std::vector<shm::Request> Says(Version version, Rank rank) const;
  void FillWeights(ChunkId chunk, uint64_t begin, std::span<float> values) const;

  // Follows the server's job: a new job means new weights, a seal a step of the twin, a dropped
  // attempt other gradients. Returns the number of versions sealed. Stops the process when a
  // version was lost or skipped.
  uint32_t Follow(const Job& job);
  // How often the weights were put.
  uint32_t lives() const { return lives_; }
  uint64_t job_nonce() const { return job_nonce_; }
  Version sealed() const { return twin_.version(); }
  // The server's word for the open step and its attempt, as last seen.
  uint64_t open_step() const { return open_step_; }
  bool last_step_taken() const { return last_step_taken_; }
  const JobTwin& twin() const { return twin_; }

  // What is wrong with fetched parameters, elements from `begin` of a chunk at `version`; empty:
  // nothing.
  std::string Compare(Version version, ChunkId chunk, uint64_t begin,
                      std::span<const std::byte> bytes) const;

 private:
  bool IsPoisoned(Version version) const;
  std::map<uint32_t, GroupNumbers> GroupsAt(Version version) const;
  bool IsReached(Version version, Rank rank, ParameterId parameter) const;
  std::set<ParameterId> UntouchedAt(Version version) const;
  void Seal();

  const uint32_t number_;
  shm::JobSpec spec_;
  bool may_poison_ = false;
  float loss_scale_ = 1;
  JobTwin twin_;
  uint64_t job_nonce_ = 0;               // of the server's job; 0: none seen
  uint64_t open_step_ = 0;               // the server's word for the open step and its attempt
  std::vector<Version> chunk_versions_;  // as they were seen last
  uint32_t lives_ = 0;
  bool last_step_taken_ = true;
};

}  // namespace tidepool::memserver
