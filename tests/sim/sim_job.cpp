#include "tests/sim/sim_job.h"

#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"
#include "tests/fakes/serve_world.h"
#include "tests/fakes/values.h"

namespace tidepool::memserver {
namespace {

// Some chunks belong to a subset of the ranks, as experts do.
void AddDataGroup(shm::JobSpec* spec, SplitMix64* random) {
  const uint64_t all = spec->data_groups[0].rank_mask;
  const uint64_t mask = (random->Next() & all) | 1;
  spec->data_groups.push_back({mask});
  for (shm::ChunkSpec& chunk : spec->chunks) {
    if (random->Below(2) == 0) chunk.data_group = 1;
  }
}

}  // namespace

SimJob::SimJob(uint32_t number, SplitMix64* random) : number_(number) {
  SpecOptions options;
  options.name = "sim" + std::to_string(number);
  options.world = 1 + static_cast<uint32_t>(random->Below(4));
  options.dtype = static_cast<DType>(random->Below(3));
  options.chunks = 1 + static_cast<uint32_t>(random->Below(4));
  options.chunk_elements = 192 * (1 + random->Below(2)) * 4;  // shards of 1 to 4 ranks (192 is a multiple of 16 x 3 and 16 x 4)
  options.micro_batches = 1 + static_cast<uint32_t>(random->Below(3));
  options.max_grad_norm = random->Below(2) == 0 ? 0.0F : 2.0F;
  options.loss_scaling = static_cast<uint32_t>(random->Below(2));
  options.rcache_bytes = 32 * kKiB;
  spec_ = MakeSpec(options);
  if (random->Below(2) == 0) AddDataGroup(&spec_, random);
  TP_CHECK(shm::Validate(spec_).ok(), "the simulation makes valid jobs");
  loss_scale_ = random->Below(2) == 0 ? 1.0F : 16.0F;
  Reset();
}

float SimJob::WeightAt(ChunkId chunk, uint64_t element) const {
  return ValueAt(1000 * number_ + lives_, chunk, element);
}

bool SimJob::IsPoisoned(Version version) const {
  SplitMix64 random(number_ * 131 + lives_ * 17 + run_ * 1009 + version * 7 + attempt_ * 5);
  random.Next();
  return random.Below(6) == 0;
}

float SimJob::GradientAt(Version version, uint32_t micro_batch, ChunkId chunk, uint64_t element) const {
  if (element == 2 && chunk == 0 && micro_batch == 0 && IsPoisoned(version)) return std::numeric_limits<float>::infinity();
  const uint64_t seed = ((number_ * 64 + lives_) * 64 + run_) * 64 + attempt_;
  return loss_scale_ * ValueAt(seed * 997 + version * 31 + micro_batch, chunk, element);
}

void SimJob::Reset() {
  ++lives_;
  sealed_ = 0;
  attempt_ = 0;
  model_ = std::make_unique<AdamModel>(spec_);
  for (ChunkId chunk = 0; chunk < spec_.chunks.size(); ++chunk) {
    for (uint64_t i = 0; i < spec_.chunks[chunk].elements; ++i) model_->weights(chunk)[i] = WeightAt(chunk, i);
  }
  TakeHistory();
  history_[1] = history_[0];
}

void SimJob::TakeHistory() {
  history_[1] = std::move(history_[0]);
  history_[0].clear();
  for (ChunkId chunk = 0; chunk < spec_.chunks.size(); ++chunk) history_[0].push_back(model_->weights(chunk));
}

void SimJob::BeginRun() {
  ++run_;
  attempt_ = 0;
}

void SimJob::BeginAttempt(uint32_t attempt) {
  if (attempt > attempt_) attempt_ = attempt;
}

void SimJob::Seal() {
  for (ChunkId chunk = 0; chunk < spec_.chunks.size(); ++chunk) {
    for (uint64_t i = 0; i < spec_.chunks[chunk].elements; ++i) {
      double sum = 0;
      for (uint32_t k = 0; k < spec_.micro_batches; ++k) sum += GradientAt(sealed_, k, chunk, i);
      model_->gradients(chunk)[i] = sum;
    }
  }
  model_->Step(learning_rate(sealed_), loss_scale_);
  ++sealed_;
  attempt_ = 0;
  TakeHistory();
}

std::string SimJob::Compare(Version version, ChunkId chunk, uint64_t begin, const std::vector<float>& values, double tolerance) const {
  if (version > sealed_ || version + 1 < sealed_)
    return "version " + std::to_string(version) + " is neither the sealed one nor the one before";
  const std::vector<double>& expected = history_[sealed_ - version][chunk];
  for (uint64_t i = 0; i < values.size(); ++i) {
    if (std::abs(values[i] - expected[begin + i]) <= tolerance * std::fmax(1, std::abs(expected[begin + i]))) continue;
    return spec_.name + " version " + std::to_string(version) + " chunk " + std::to_string(chunk) + " element " +
           std::to_string(begin + i) + ": " + std::to_string(values[i]) + ", expected " + std::to_string(expected[begin + i]);
  }
  return "";
}

}  // namespace tidepool::memserver
