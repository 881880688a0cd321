#include "tests/sim/sim_job.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"
#include "shm/spec/validate.h"
#include "shm/step_numbers.h"
#include "tests/fakes/serve_world.h"

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

// The ranks as one or two columns of a pipeline: each chunk is a stage, with a data group of its
// own, the rank of each column that computes it. No rank has a part of every chunk.
void MakePipeline(shm::JobSpec* spec, uint64_t bits) {
  const uint32_t columns = spec->world % 2 == 0 && bits % 2 == 0 ? 2 : 1;
  const uint32_t width = spec->world / columns;
  if (spec->world == 1 || width > spec->chunks.size()) return;  // each rank has a stage
  spec->data_groups.clear();
  for (uint32_t stage = 0; stage < spec->chunks.size(); ++stage) {
    uint64_t mask = 0;
    for (uint32_t column = 0; column < columns; ++column)
      mask |= uint64_t{1} << (column * width + stage % width);
    spec->data_groups.push_back({mask});
    spec->chunks[stage].data_group = stage;
  }
}

shm::JobSpec RandomSpec(uint32_t number, SplitMix64* random) {
  SpecOptions options;
  options.name = "sim" + std::to_string(number);
  options.world = 1 + static_cast<uint32_t>(random->Below(4));
  options.dtype = static_cast<DType>(random->Below(3));
  options.chunks = 1 + static_cast<uint32_t>(random->Below(4));
  // Shards of 1 to 4 ranks (192 is a multiple of 16 x 3 and 16 x 4)
  options.chunk_elements = 192 * (1 + random->Below(2)) * 4;
  options.micro_batches = 1 + static_cast<uint32_t>(random->Below(3));
  options.max_grad_norm = random->Below(2) == 0 ? 0.0F : 2.0F;
  options.loss_scaling = static_cast<uint32_t>(random->Below(2));
  options.rcache_bytes = 32 * kKiB;
  shm::JobSpec spec = MakeSpec(options);
  spec.optimizer.rule = static_cast<OptimizerRule>(random->Below(RuleNames().size()));
  spec.optimizer.momentum = random->Below(3) == 0 ? 0 : 0.9;
  spec.optimizer.rounding_seed = random->Next();
  if (spec.dtype == DType::kBF16)
    spec.optimizer.states = static_cast<StateForm>(random->Below(StateFormNames().size()));
  // Half of them keep their first chunks in fp32, as models keep norms and routers.
  const uint64_t bits = spec.optimizer.rounding_seed >> 8;
  if (spec.dtype != DType::kF32 && bits % 2 == 0)
    spec.f32_chunks = static_cast<uint32_t>(bits / 2 % options.chunks);
  // Some add up their micro-batches themselves.
  if (spec.dtype != DType::kF32 && bits / 16 % 3 == 0) {
    spec.micro_batches = 1;
    spec.sums_gradients = 1;
  }
  if (random->Below(2) == 0) AddDataGroup(&spec, random);
  if (bits / 64 % 4 == 0) MakePipeline(&spec, bits / 256);
  TP_CHECK(shm::Validate(spec).ok(), "the simulation makes valid jobs");
  return spec;
}

uint64_t Mix(uint64_t a, uint64_t b) {
  return SplitMix64(a * 0x9E3779B97F4A7C15ULL + b).Next();
}

// Element i has its own number, whatever range is asked for; all bits of a float's fraction are
// used, so that sums round.
float ValueAt(uint64_t seed, uint64_t i) {
  const uint64_t bits = SplitMix64(seed + i).Next() >> 40;
  return static_cast<float>(static_cast<int64_t>(bits) - (int64_t{1} << 23)) * 0x1p-23F;
}

}  // namespace

const std::vector<std::byte>& SimJob::FrozenContent(uint64_t content) {
  static const std::vector<std::vector<std::byte>> contents = [] {
    std::vector<std::vector<std::byte>> made(kFrozenContents, std::vector<std::byte>(kFrozenBytes));
    SplitMix64 random(20);
    for (auto& bytes : made) {
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.Next());
    }
    return made;
  }();
  return contents[content];
}

const std::vector<std::byte>& SimJob::ContentOf(const ContentHash& name) {
  static const std::vector<ContentHash> names = [] {
    std::vector<ContentHash> made;
    for (uint64_t i = 0; i < kFrozenContents; ++i) made.push_back(HashOf(FrozenContent(i)));
    return made;
  }();
  const auto found = std::find(names.begin(), names.end(), name);
  TP_CHECK(found != names.end(), "only contents of the simulation have names");
  return FrozenContent(static_cast<uint64_t>(found - names.begin()));
}

SimJob::SimJob(uint32_t number, const FaultPlan& plan, bool frozen, SplitMix64* random)
    : number_(number),
      spec_(RandomSpec(number, random)),
      may_poison_(plan.Has(Fault::kNonFinite)),
      loss_scale_(random->Below(2) == 0 ? 1.0F : 16.0F),
      twin_(spec_) {
  for (uint64_t i = frozen ? 1 + random->Below(3) : 0; i > 0; --i) {
    const auto dtype = static_cast<DType>((spec_.optimizer.rounding_seed >> 2 * i) % 4);
    spec_.frozen.push_back({kFrozenBytes / BytesOf(dtype), dtype,
                            HashOf(FrozenContent(random->Below(kFrozenContents)))});
  }
}

bool SimJob::IsPipeline() const {
  const uint64_t all = (uint64_t{1} << spec_.world) - 1;
  return std::none_of(spec_.data_groups.begin(), spec_.data_groups.end(),
                      [all](const shm::DataGroup& group) { return group.rank_mask == all; });
}

void SimJob::FillWeights(ChunkId chunk, uint64_t begin, std::span<float> values) const {
  const uint64_t seed = Mix(Mix(number_, lives_), chunk);
  for (size_t i = 0; i < values.size(); ++i) values[i] = ValueAt(seed, begin + i);
}

bool SimJob::IsPoisoned(Version version) const {
  return may_poison_ &&
         SplitMix64(Mix(Mix(number_, lives_), Mix(version, open_step_))).Below(6) == 0;
}

void SimJob::FillGradient(Version version, uint32_t micro_batch, ChunkId chunk, uint64_t begin,
                          std::span<float> values) const {
  if (IsZeros(version, micro_batch, chunk)) {
    std::fill(values.begin(), values.end(), 0.0F);
    return;
  }

  const uint64_t seed =
      Mix(Mix(Mix(number_, lives_), Mix(version, open_step_)), Mix(micro_batch, chunk));
  for (size_t i = 0; i < values.size(); ++i) values[i] = loss_scale_ * ValueAt(seed, begin + i);
  const bool poison = chunk == 0 && micro_batch == 0 && begin <= 2 && begin + values.size() > 2 &&
                      IsPoisoned(version);
  if (poison) values[2 - begin] = std::numeric_limits<float>::infinity();
}

bool SimJob::IsZeros(Version version, uint32_t micro_batch, ChunkId chunk) const {
  const uint64_t seed =
      Mix(Mix(Mix(number_, lives_), Mix(version, open_step_)), Mix(micro_batch, chunk) + 1);
  return chunk != 0 && SplitMix64(seed).Below(4) == 0;
}

// Changes from attempt to attempt, as gradients do.
std::map<uint32_t, GroupNumbers> SimJob::GroupsAt(Version version) const {
  std::map<uint32_t, GroupNumbers> groups;
  if (number_ % 2 == 0) return groups;
  const uint64_t seed = Mix(Mix(number_, lives_), Mix(version, open_step_) + 1);
  for (uint32_t group = 0; group < spec_.parameter_groups.size(); ++group) {
    SplitMix64 random(Mix(seed, group));
    if (random.Below(3) == 0) continue;
    OptimizerSpec own = spec_.optimizer;
    own.beta1 = 0.5 + 0.05 * static_cast<double>(random.Below(9));
    if (own.momentum > 0) own.momentum = own.beta1;
    const float rate = 0.002F * static_cast<float>(1 + random.Below(5));
    groups[group] = NumbersOf(own, rate, 0.1F * static_cast<float>(random.Below(3)));
  }
  return groups;
}

bool SimJob::IsReached(Version version, Rank rank, ParameterId parameter) const {
  if (number_ % 2 == 0) return true;
  const uint64_t seed = Mix(Mix(number_, lives_), Mix(version, open_step_) + 2);
  // All ranks skip the same branch in some steps, else hardly anything would be left alone.
  const uint64_t who = SplitMix64(seed).Below(2) == 0 ? 0 : rank + 1;
  return SplitMix64(Mix(Mix(seed, who), parameter)).Below(3) != 0;
}

std::set<ParameterId> SimJob::UntouchedAt(Version version) const {
  std::set<ParameterId> untouched;
  for (ParameterId id = 0; id < spec_.parameters.size(); ++id) {
    bool reached = false;
    for (Rank rank = 0; rank < spec_.world; ++rank) {
      if (spec_.IsMember(spec_.parameters[id].chunk, rank))
        reached = reached || IsReached(version, rank, id);
    }
    if (!reached) untouched.insert(id);
  }
  return untouched;
}

std::vector<shm::Request> SimJob::Says(Version version, Rank rank) const {
  std::vector<uint64_t> set(shm::WordsOfSet(spec_.parameters.size()));
  for (ParameterId id = 0; id < spec_.parameters.size(); ++id) {
    if (!IsReached(version, rank, id)) set[id / 64] |= uint64_t{1} << id % 64;
  }
  std::vector<shm::Request> requests =
      shm::UntouchedRequestsOf(set, spec_.parameters.size(), version);
  for (const auto& [group, numbers] : GroupsAt(version))
    requests.push_back(shm::GroupNumbersRequestOf(group, numbers, version));
  // Every other step is told of, with a loss that may be no number.
  if (version % 2 == 0) {
    const float loss = version % 4 == 0 ? std::nanf("") : 2.0F;
    requests.push_back(shm::StepFactsRequestOf({.loss = loss, .tokens = version}, version));
  }
  return requests;
}

uint32_t SimJob::Follow(const Job& job) {
  if (job.nonce != job_nonce_) {
    job_nonce_ = job.nonce;
    open_step_ = 0;
    ++lives_;
    chunk_versions_.assign(spec_.chunks.size(), kNoVersion);
    twin_.Start([this](ChunkId chunk, std::span<float> values) { FillWeights(chunk, 0, values); });
  }
  if (!job.IsRecorded()) return 0;
  const Version sealed = job.states->sealed_version();
  TP_CHECK(sealed == twin_.version() || sealed == twin_.version() + 1,
           "a sealed step is never lost, and none is skipped");
  const bool stepped = sealed != twin_.version();
  if (stepped) Seal();
  TP_CHECK(stepped || job.states->open_step() >= open_step_, "attempts at a step only grow");
  open_step_ = job.states->open_step();
  for (ChunkId id = 0; id < chunk_versions_.size(); ++id) {
    const Version now = job.states->chunk(id).version,
                  before = std::exchange(chunk_versions_[id], now);
    TP_CHECK(before == kNoVersion || (now != kNoVersion && now >= before),
             "a chunk's version never goes back");
  }
  return stepped ? 1 : 0;
}

void SimJob::Seal() {
  const Version version = twin_.version();
  const auto fill = [this, version](ChunkId chunk, uint32_t micro_batch, std::span<float> values) {
    FillGradient(version, micro_batch, chunk, 0, values);
  };
  last_step_taken_ = twin_.Step(
      {learning_rate(version), loss_scale_, GroupsAt(version), UntouchedAt(version)}, fill);
  TP_CHECK(last_step_taken_ || spec_.loss_scaling != 0,
           "without loss scaling, a step with an infinite gradient is not sealed");
}

std::string SimJob::Compare(Version version, ChunkId chunk, uint64_t begin,
                            std::span<const std::byte> bytes) const {
  const std::string where =
      spec_.name + " version " + std::to_string(version) + " chunk " + std::to_string(chunk);
  if (version > sealed() || version + 1 < sealed())
    return where + ": neither the sealed version nor the one before";
  const auto expected = twin_.ParameterBytes(chunk, static_cast<uint32_t>(sealed() - version));
  const uint64_t at = begin * BytesOf(spec_.DTypeOf(chunk));
  if (at + bytes.size() > expected.size()) return where + ": outside the chunk";
  return std::memcmp(bytes.data(), expected.data() + at, bytes.size()) == 0
             ? ""
             : where + ": other bits than in an undisturbed run";
}

}  // namespace tidepool::memserver
