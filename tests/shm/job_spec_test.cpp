#include "shm/spec/job_spec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "base/units.h"
#include "shm/spec/decode.h"
#include "shm/spec/encode.h"
#include "shm/spec/frozen.h"
#include "shm/spec/gpu_states.h"
#include "shm/spec/state_bytes.h"
#include "shm/spec/state_footprint.h"
#include "shm/spec/validate.h"

namespace tidepool::shm {
namespace job_spec_test {

// Two chunks of 2 ranks, the second in a group of rank 1 alone; three parameters.
JobSpec SmallSpec() {
  JobSpec spec;
  spec.name = "small";
  spec.world = 2;
  spec.rcache_bytes = 64 * kKiB;
  spec.parameter_groups = {{1.0F, 0.1F}, {1.0F, 0.0F}};
  spec.data_groups = {{0b11}, {0b10}};
  spec.chunks = {{2048, 0}, {1024, 1}};
  spec.parameters = {{"a.weight", {32, 32}, 0, 0, 0, 1024},
                     {"a.bias", {32}, 0, 1, 1024, 32},
                     {"b.weight", {10, 100}, 1, 0, 16, 1000}};
  return spec;
}

TEST(JobSpec, ASoundSpecIsValidAndComesBackTheSame) {
  const JobSpec spec = SmallSpec();
  ASSERT_TRUE(Validate(spec).ok()) << Validate(spec).Format();
  const auto bytes = Encode(spec);
  const auto decoded = Decode(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status().Format();
  EXPECT_EQ(Encode(decoded.value()), bytes);
  EXPECT_EQ(decoded.value().name, "small");
  EXPECT_EQ(decoded.value().chunks, spec.chunks);
  EXPECT_EQ(decoded.value().parameters[2].dims, (std::vector<uint64_t>{10, 100}));
  EXPECT_EQ(decoded.value().optimizer, spec.optimizer);
}

JobSpec SpecWithFrozen() {
  JobSpec spec = SmallSpec();
  const ContentHash one = HashOf({}), other = HashOf(std::as_bytes(std::span("x", 1)));
  spec.frozen = {{16, DType::kF32, one},
                 {2048, DType::kF32, one},
                 {2048, DType::kF32, other},
                 {2048, DType::kF32, other}};
  return spec;
}

TEST(JobSpec, FrozenChunksComeBackTheSameAndTakeTheirIdsBehindTheOthers) {
  const JobSpec spec = SpecWithFrozen();
  ASSERT_TRUE(Validate(spec).ok()) << Validate(spec).Format();
  const auto decoded = Decode(Encode(spec));
  ASSERT_TRUE(decoded.ok()) << decoded.status().Format();
  EXPECT_EQ(decoded.value().frozen, spec.frozen);
  EXPECT_FALSE(spec.IsFrozen(1));
  EXPECT_TRUE(spec.IsFrozen(2));
  EXPECT_TRUE(spec.IsFrozen(5));
  EXPECT_FALSE(spec.IsFrozen(6));
  EXPECT_EQ(spec.Frozen(3), spec.frozen[1]);
  EXPECT_EQ(spec.TotalElements(), SmallSpec().TotalElements()) << "they are not trained";
}

TEST(JobSpec, FrozenChunksTakeAPageAndTheirBytesOnce) {
  // 64 bytes, 8 KiB of one content, and 8 KiB of another that is listed twice.
  EXPECT_EQ(FrozenPoolBytes(SpecWithFrozen()), 2 * kPageBytes + 2 * 3 * kPageBytes);
  EXPECT_EQ(FrozenPoolBytes(SmallSpec()), 0U);
  const StateBytes with = StateBytesOf(SpecWithFrozen()), without = StateBytesOf(SmallSpec());
  EXPECT_EQ(with.total() - with.records, without.total() - without.records)
      << "of the job itself they take records alone";
}

TEST(JobSpec, WithoutStatesOnGpusItsBytesAreWhatTheyWereAndWithThemTheNumberStandsBehind) {
  JobSpec spec = SmallSpec();
  const auto without = Encode(spec);
  spec.states_on_gpu = 2;
  auto with = Encode(spec);
  ASSERT_EQ(with.size(), without.size() + sizeof(uint32_t));
  EXPECT_TRUE(std::equal(without.begin(), without.end(), with.begin()));
  const auto decoded = Decode(with);
  ASSERT_TRUE(decoded.ok()) << decoded.status().Format();
  EXPECT_EQ(decoded.value().states_on_gpu, 2U);
  with[without.size()] = std::byte{0};
  EXPECT_EQ(Decode(with).status().id(), ErrorId::kJobSpecBad) << "one job, one form";
}

// The second of two chunks is bf16, the first fp32; frozen ones are of three types.
JobSpec MixedSpec() {
  JobSpec spec = SmallSpec();
  spec.dtype = DType::kBF16;
  spec.parameters[2].element_begin = 0;
  spec.f32_chunks = 1;
  const ContentHash content = HashOf({});
  spec.frozen = {
      {16, DType::kRaw, content}, {16, DType::kF32, content}, {16, DType::kBF16, content}};
  return spec;
}

TEST(JobSpec, ChunksOfSeveralTypesComeBackTheSame) {
  const JobSpec spec = MixedSpec();
  const auto decoded = Decode(Encode(spec));
  ASSERT_TRUE(decoded.ok()) << decoded.status().Format();
  EXPECT_EQ(decoded.value().f32_chunks, 1U);
  EXPECT_EQ(decoded.value().frozen, spec.frozen);
  EXPECT_EQ(Encode(decoded.value()), Encode(spec));
  EXPECT_EQ(spec.DTypeOf(0), DType::kF32);
  EXPECT_EQ(spec.DTypeOf(1), DType::kBF16);
  EXPECT_EQ(spec.DTypeOf(2), DType::kRaw);
  EXPECT_EQ(spec.DTypeOf(3), DType::kF32);
  EXPECT_EQ(FrozenBytes(spec.frozen[0]), 16U);
  EXPECT_EQ(FrozenBytes(spec.frozen[1]), 64U);
}

// A job that the former release has left is found by them.
TEST(JobSpec, AJobOfOneTypeHasTheBytesOfTheReleaseBefore) {
  JobSpec spec = SmallSpec();
  EXPECT_EQ(Fingerprint(Encode(spec)), 0x5e8339b83f35da16U);
  spec.frozen = {{16, spec.dtype, HashOf({})}};
  spec.states_on_gpu = 1;
  EXPECT_EQ(Fingerprint(Encode(spec)), 0xf2d999ad20b56155U);
}

TEST(JobSpec, TypesStandBehindAllElseAndOnlyWhereTheyAreNotTheJobs) {
  JobSpec spec = MixedSpec();
  const auto with = Encode(spec);
  JobSpec plain = spec;
  plain.f32_chunks = 0;
  for (FrozenChunkSpec& chunk : plain.frozen) chunk.dtype = DType::kBF16;
  auto without = Encode(plain);
  ASSERT_EQ(with.size(), without.size() + 2 * sizeof(uint32_t) + 3);
  EXPECT_TRUE(std::equal(without.begin(), without.end(), with.begin()));

  // The same, with what says nothing.
  without.insert(without.end(), 2 * sizeof(uint32_t), std::byte{0});
  without.insert(without.end(), 3, std::byte{1});
  EXPECT_EQ(Decode(without).status().id(), ErrorId::kJobSpecBad) << "one job, one form";
  for (size_t length = with.size() - 10; length < with.size(); ++length)
    EXPECT_FALSE(Decode(std::span(with).first(length)).ok()) << length;
}

TEST(JobSpec, SumsOfGradientsStandBehindTypesAndNeedAnFp32Slot) {
  JobSpec spec = MixedSpec();
  const auto without = Encode(spec);
  EXPECT_EQ(spec.GradientTypeOf(1), DType::kBF16);
  EXPECT_EQ(GradientSlotType(spec, 1), DType::kBF16);
  spec.sums_gradients = 1;
  auto with = Encode(spec);
  ASSERT_EQ(with.size(), without.size() + sizeof(uint32_t));
  EXPECT_TRUE(std::equal(without.begin(), without.end(), with.begin()));

  const auto decoded = Decode(with);
  ASSERT_TRUE(decoded.ok()) << decoded.status().Format();
  EXPECT_EQ(decoded.value().sums_gradients, 1U);
  EXPECT_EQ(spec.GradientTypeOf(1), DType::kF32);
  EXPECT_EQ(GradientSlotType(spec, 1), DType::kF32);
  EXPECT_EQ(PlaneBytesOf(spec, 1).gradient, 4 * 1024U);
  EXPECT_EQ(StagingBytes(spec, 64), 0U) << "what comes once is copied to its slot";

  with[without.size()] = std::byte{0};
  EXPECT_EQ(Decode(with).status().id(), ErrorId::kJobSpecBad) << "one job, one form";
  for (size_t length = without.size() + 1; length < with.size(); ++length)
    EXPECT_FALSE(Decode(std::span(with).first(length)).ok()) << length;

  JobSpec plain = SmallSpec();
  plain.dtype = DType::kBF16;
  plain.parameters[2].element_begin = 0;
  plain.sums_gradients = 1;
  const auto of_one_type = Decode(Encode(plain));
  ASSERT_TRUE(of_one_type.ok()) << of_one_type.status().Format();
  EXPECT_EQ(Encode(of_one_type.value()), Encode(plain));
}

TEST(JobSpec, AnFp32ChunkOfABf16JobHasNoCopyAndStatesOfItsOwnForm) {
  JobSpec spec = MixedSpec();
  spec.optimizer.states = StateForm::kSplit8;
  EXPECT_EQ(spec.StatesOf(0), StateForm::kF32);
  EXPECT_EQ(spec.StatesOf(1), StateForm::kSplit8);
  const PlaneBytes first = PlaneBytesOf(spec, 0), second = PlaneBytesOf(spec, 1);
  EXPECT_EQ(first.master, 4 * 2048U);
  EXPECT_EQ(first.momentum, 4 * 2048U);
  EXPECT_EQ(first.param16, 0U);
  EXPECT_EQ(first.gradient, 4 * 2048U);
  EXPECT_EQ(second.master, 2 * 1024U);
  EXPECT_EQ(second.param16, 2 * 1024U);
  EXPECT_EQ(second.gradient, 2 * 1024U);

  EXPECT_EQ(HostPlaneBytesOf(spec, 0, true).master, 4 * 2048U) << "what trainers fetch stays";
  EXPECT_EQ(HostPlaneBytesOf(spec, 1, true).master, 0U);
  EXPECT_EQ(SpilledPieceOf(spec, 0, 64).high, SpilledPiece::kNone);
  EXPECT_EQ(SpilledPieceOf(spec, 1, 64).high, 128U);
  JobSpec uniform = spec;
  uniform.f32_chunks = 0;
  EXPECT_EQ(ExtentCount(spec) + 1, ExtentCount(uniform)) << "one plane less";
}

TEST(JobSpec, AnFp32ChunkWithoutMomentsLeavesNothingBehindWhenItSpills) {
  JobSpec spec = MixedSpec();
  EXPECT_TRUE(MaySpill(spec));
  spec.optimizer.rule = OptimizerRule::kSgd;
  EXPECT_FALSE(MaySpill(spec));
  spec.f32_chunks = 0;
  EXPECT_TRUE(MaySpill(spec)) << "the master of a bf16 chunk leaves the host";
}

TEST(JobSpec, AShareHasTwoSlotsOfEachOfItsChunksAndThePoolHasNoRoomForThem) {
  JobSpec spec = SmallSpec();
  EXPECT_EQ(GpuStateBytes(spec), 0U);
  spec.dtype = DType::kBF16;
  spec.parameters[2].element_begin = 0;
  const uint64_t before = HostStateBytesOf(spec, kNoSpill).total();
  EXPECT_EQ(before, StateBytesOf(spec).total());
  spec.states_on_gpu = 1;
  EXPECT_EQ(GpuShareBytes(spec, 0), kGpuMemoryUnit)
      << "2 x 24 KiB, and the staging of a chunk, in 2 MiB";
  EXPECT_EQ(GpuShareBytes(spec, 1), 0U);
  EXPECT_EQ(HostStateBytesOf(spec, kNoSpill).total(), before - 3 * 8 * kKiB)
      << "the records are as large as they were";
  EXPECT_EQ(HostStateBytesOf(spec, 1).total(), HostStateBytesOf(spec, 0).total())
      << "what lies on a GPU does not spill";
  EXPECT_EQ(NvmeBytesOf(spec, 0), SpilledChunkBytes(spec, 1));
  spec.chunks[1].elements = kGpuUnitElements;
  spec.states_on_gpu = 2;
  EXPECT_EQ(GpuShareBytes(spec, 1),
            2 * 3 * 4 * kGpuUnitElements + kGpuUnitsInFlight * (2 + 2) * kGpuUnitElements);
  EXPECT_EQ(GpuStateBytes(spec), GpuShareBytes(spec, 0) + GpuShareBytes(spec, 1));
}

TEST(JobSpec, ShardsFollowTheDataParallelGroup) {
  const JobSpec spec = SmallSpec();
  EXPECT_EQ(spec.ShardCount(0), 2U);
  EXPECT_EQ(spec.ShardElements(0), 1024U);
  EXPECT_EQ(spec.ShardIndex(0, 1), 1U);
  EXPECT_EQ(spec.ShardCount(1), 1U);
  EXPECT_FALSE(spec.IsMember(1, 0));
  EXPECT_TRUE(spec.IsMember(1, 1));
  EXPECT_FALSE(spec.IsMember(0, 64));
  EXPECT_EQ(spec.ShardIndex(1, 1), 0U);
  EXPECT_EQ(spec.TotalElements(), 3072U);
  EXPECT_EQ(spec.ParameterCount(), 2056U);
}

struct Broken {
  const char* name;
  std::function<void(JobSpec*)> change;
  const char* expected_text;
};

class JobSpecBroken : public ::testing::TestWithParam<Broken> {};

TEST_P(JobSpecBroken, IsRefusedWithTheReasonBothBeforeAndAfterTheWire) {
  JobSpec spec = SmallSpec();
  GetParam().change(&spec);
  const Status status = Validate(spec);
  EXPECT_EQ(status.id(), ErrorId::kJobSpecBad);
  EXPECT_NE(status.what().find(GetParam().expected_text), std::string::npos) << status.what();
  EXPECT_EQ(Decode(Encode(spec)).status().id(), ErrorId::kJobSpecBad);
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

const Broken kBroken[] = {
    {"EmptyName", [](JobSpec* s) { s->name = ""; }, "job name"},
    {"SlashInName", [](JobSpec* s) { s->name = "a/b"; }, "job name"},
    {"LongName", [](JobSpec* s) { s->name = std::string(64, 'a'); }, "job name"},
    {"NoRanks", [](JobSpec* s) { s->world = 0; }, "ranks"},
    {"ManyRanks", [](JobSpec* s) { s->world = 65; }, "ranks"},
    {"NoMicroBatch", [](JobSpec* s) { s->micro_batches = 0; }, "micro-batches"},
    {"ManyMicroBatches", [](JobSpec* s) { s->micro_batches = kMicroBatchesMax + 1; },
     "micro-batches"},
    {"NoChunks", [](JobSpec* s) { s->chunks.clear(); }, "chunks"},
    {"NoParameters", [](JobSpec* s) { s->parameters.clear(); }, "parameters"},
    {"WildDType", [](JobSpec* s) { s->dtype = static_cast<DType>(9); }, "element type"},
    {"WildOptimizer", [](JobSpec* s) { s->optimizer.rule = static_cast<OptimizerRule>(5); },
     "optimizer"},
    {"WildScaling", [](JobSpec* s) { s->loss_scaling = 2; }, "loss_scaling"},
    {"RcacheZero", [](JobSpec* s) { s->rcache_bytes = 0; }, "rCache"},
    {"RcacheOdd", [](JobSpec* s) { s->rcache_bytes = 4097; }, "rCache"},
    {"RcacheHuge", [](JobSpec* s) { s->rcache_bytes = uint64_t{1} << 62; }, "rCache"},
    {"BetaOne", [](JobSpec* s) { s->optimizer.beta1 = 1; }, "beta"},
    {"BetaNan", [](JobSpec* s) { s->optimizer.beta2 = kNan; }, "beta"},
    {"EpsInfinite", [](JobSpec* s) { s->optimizer.eps = kInfinity; }, "eps"},
    {"WildStates", [](JobSpec* s) { s->optimizer.states = static_cast<StateForm>(4); },
     "form of the optimizer states"},
    {"SplitFp32", [](JobSpec* s) { s->optimizer.states = StateForm::kSplit; }, "only bf16"},
    {"MomentumOne", [](JobSpec* s) { s->optimizer.momentum = 1; }, "momentum"},
    {"DampeningNan", [](JobSpec* s) { s->optimizer.dampening = kNan; }, "dampening"},
    {"RateDecayNegative", [](JobSpec* s) { s->optimizer.lr_decay = -1; }, "lr_decay"},
    {"NesterovTwo", [](JobSpec* s) { s->optimizer.nesterov = 2; }, "nesterov"},
    {"NesterovAlone", [](JobSpec* s) { s->optimizer.nesterov = 1; }, "nesterov"},
    {"ClipNegative", [](JobSpec* s) { s->max_grad_norm = -1; }, "max_grad_norm"},
    {"DecayNan", [](JobSpec* s) { s->parameter_groups[1].weight_decay = kNan; },
     "parameter group 1"},
    {"EmptyGroup", [](JobSpec* s) { s->data_groups[0].rank_mask = 0; }, "data-parallel group 0"},
    {"StrangersInGroup", [](JobSpec* s) { s->data_groups[1].rank_mask = 0b100; },
     "data-parallel group 1"},
    {"ChunkWithoutGroup", [](JobSpec* s) { s->chunks[1].data_group = 2; }, "chunk 1"},
    {"EmptyFrozen",
     [](JobSpec* s) {
       s->frozen = {{16, DType::kF32, {}}, {0, DType::kF32, {}}};
     },
     "frozen chunk 1 has 0 elements"},
    {"UnevenFrozen",
     [](JobSpec* s) {
       s->frozen = {{17, DType::kF32, {}}};
     },
     "frozen chunk 0 has 17 elements"},
    {"HugeFrozen",
     [](JobSpec* s) {
       s->frozen = {{uint64_t{1} << 56, DType::kF32, {}}, {16, DType::kF32, {}}};
     },
     "2^56"},
    {"ManyFrozen",
     [](JobSpec* s) {
       s->frozen.assign(kChunksMax, {16, DType::kF32, {}});
     },
     "chunks in all"},
    {"MoreOnGpusThanThereAre", [](JobSpec* s) { s->states_on_gpu = 3; }, "the job has 2 chunks"},
    {"SgdOnGpus",
     [](JobSpec* s) {
       s->states_on_gpu = 1;
       s->optimizer.rule = OptimizerRule::kSgd;
     },
     "adamw or adam"},
    {"UnevenShards", [](JobSpec* s) { s->chunks[0].elements = 2048 + 16; }, "chunk 0"},
    {"EmptyChunk", [](JobSpec* s) { s->chunks[0].elements = 0; }, "chunk 0"},
    {"TooManyElements", [](JobSpec* s) { s->chunks[0].elements = uint64_t{1} << 61; }, "2^56"},
    {"ParameterOutOfOrder", [](JobSpec* s) { std::swap(s->parameters[0], s->parameters[1]); },
     "out of order"},
    {"ParameterChunkOrder", [](JobSpec* s) { std::swap(s->parameters[0], s->parameters[2]); },
     "chunk order"},
    {"ParameterOverlap", [](JobSpec* s) { s->parameters[1].element_begin = 1008; }, "overlaps"},
    {"ParameterOutside", [](JobSpec* s) { s->parameters[1].element_begin = 2032; },
     "inside its chunk"},
    {"ParameterFarOutside", [](JobSpec* s) { s->parameters[1].element_begin = ~uint64_t{15}; },
     "inside its chunk"},
    {"ParameterUnaligned", [](JobSpec* s) { s->parameters[1].element_begin = 1032; }, "64 bytes"},
    {"ShapeWrong", [](JobSpec* s) { s->parameters[1].dims = {33}; }, "shape"},
    {"ShapeOverflows",
     [](JobSpec* s) {
       s->parameters[1].dims = {uint64_t{1} << 40, uint64_t{1} << 40};
     },
     "shape"},
    {"ShapeWithZero",
     [](JobSpec* s) {
       s->parameters[1].dims = {0, 32};
     },
     "shape"},
    {"TooManyDims", [](JobSpec* s) { s->parameters[1].dims = {1, 1, 1, 1, 1, 1, 32}; }, ""},
    {"Fp32ChunksOfAnFp32Job", [](JobSpec* s) { s->f32_chunks = 1; }, "16-bit job"},
    {"AllChunksFp32",
     [](JobSpec* s) {
       s->dtype = DType::kBF16;
       s->f32_chunks = 2;
     },
     "16-bit job"},
    {"SumsOfAnFp32Job", [](JobSpec* s) { s->sums_gradients = 1; }, "sums gradients"},
    {"SumsOfSeveralMicroBatches",
     [](JobSpec* s) {
       s->dtype = DType::kBF16;
       s->micro_batches = 2;
       s->sums_gradients = 1;
     },
     "sums gradients"},
    {"RawTrained", [](JobSpec* s) { s->dtype = DType::kRaw; }, "element type"},
    {"FrozenOfNoType",
     [](JobSpec* s) {
       s->frozen = {{16, static_cast<DType>(9), HashOf({})}};
     },
     "element type"},
    {"NameTwice", [](JobSpec* s) { s->parameters[1].name = "a.weight"; }, "twice"},
    {"NameReserved", [](JobSpec* s) { s->parameters[1].name = "__metadata__"; }, "name"},
    {"NameWithQuote", [](JobSpec* s) { s->parameters[1].name = "a\"b"; }, "name"},
    {"NameTooLong", [](JobSpec* s) { s->parameters[1].name = std::string(kNameMax + 1, 'x'); },
     "name"},
    {"NoSuchParameterGroup", [](JobSpec* s) { s->parameters[1].group = 2; }, "parameter group"},
};

INSTANTIATE_TEST_SUITE_P(Invariants, JobSpecBroken, ::testing::ValuesIn(kBroken),
                         [](const auto& tested) { return tested.param.name; });

TEST(JobSpec, SixteenBitParametersStartOnThirtyTwoElements) {
  JobSpec spec = SmallSpec();
  spec.dtype = DType::kBF16;
  EXPECT_EQ(Validate(spec).id(), ErrorId::kJobSpecBad);
  spec.parameters[2].element_begin = 0;
  EXPECT_TRUE(Validate(spec).ok());
}

TEST(JobSpec, SixtyFourRanksAreAllowed) {
  JobSpec spec = SmallSpec();
  spec.world = 64;
  spec.data_groups = {{~uint64_t{0}}, {uint64_t{1} << 63}};
  ASSERT_TRUE(Validate(spec).ok()) << Validate(spec).Format();
  EXPECT_EQ(spec.ShardIndex(0, 63), 63U);
}

TEST(JobSpec, EveryCutOfTheBytesIsRefused) {
  const auto bytes = Encode(SmallSpec());
  for (size_t length = 0; length < bytes.size(); ++length) {
    ASSERT_FALSE(Decode(std::span(bytes).first(length)).ok()) << length;
  }
  auto longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(Decode(longer).ok());
}

TEST(JobSpec, RandomDamageNeverPassesAnInvalidSpec) {
  const auto bytes = Encode(SmallSpec());
  SplitMix64 random(17);
  for (int round = 0; round < 20'000; ++round) {
    auto damaged = bytes;
    for (uint64_t i = 0; i < 1 + random.Below(4); ++i)
      damaged[random.Below(damaged.size())] = static_cast<std::byte>(random.Next());
    const auto decoded = Decode(damaged);
    if (decoded.ok()) {
      ASSERT_TRUE(Validate(decoded.value()).ok());
    }
  }
}

TEST(JobSpec, AHugeCountInFewBytesAllocatesNothing) {
  JobSpec spec = SmallSpec();
  auto bytes = Encode(spec);
  // The count of parameter groups stands after: magic, name, 2 numbers, the optimizer, a float, 2
  // numbers, rcache_bytes.
  const size_t optimizer = 2 * 4 + 6 * 8 + 4 + 8;
  const size_t at = 4 + (4 + spec.name.size()) + 2 * 4 + optimizer + 4 + 2 * 4 + 8;
  for (size_t i = 0; i < 4; ++i) bytes[at + i] = std::byte{0xff};
  EXPECT_EQ(Decode(bytes).status().id(), ErrorId::kJobSpecBad);
}

TEST(JobSpec, DecodingIsLinearInItsBytes) {
  constexpr uint32_t kMany = 1u << 16;
  JobSpec spec = SmallSpec();
  spec.chunks.assign(kMany, {2048, 0});
  spec.parameters.clear();
  for (uint32_t i = 0; i < kMany; ++i)
    spec.parameters.push_back({"p" + std::to_string(i), {1024}, i, 0, 0, 1024});
  const auto bytes = Encode(spec);
  const SteadyClock clock;
  const int64_t start = clock.NowNs();
  ASSERT_TRUE(Decode(bytes).ok());
  EXPECT_LT(clock.NowNs() - start, 30 * kNsPerSecond);  // a quadratic check would take minutes
}

TEST(JobSpec, FingerprintsDifferWhenOneByteDiffers) {
  const auto bytes = Encode(SmallSpec());
  const uint64_t before = Fingerprint(bytes);
  EXPECT_EQ(before, Fingerprint(bytes));
  for (size_t i = 0; i < bytes.size(); ++i) {
    auto changed = bytes;
    changed[i] ^= std::byte{1};
    ASSERT_NE(Fingerprint(changed), before) << i;
  }
  auto longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_NE(Fingerprint(longer), before) << "zeros at the end count";
}

TEST(StateBytes, Fp32JobsNeedSixteenBytesAParameter) {
  JobSpec spec = SmallSpec();  // 2048 and 1024 elements: planes of 8 KiB and 4 KiB
  const StateBytes sum = StateBytesOf(spec);
  EXPECT_EQ(sum.master, 12 * kKiB);
  EXPECT_EQ(sum.momentum, 12 * kKiB);
  EXPECT_EQ(sum.variance, 12 * kKiB);
  EXPECT_EQ(sum.param16, 0U);
  EXPECT_EQ(sum.gradient, 12 * kKiB);
  EXPECT_EQ(sum.staging, 0U);
  EXPECT_EQ(sum.total() - sum.records, 48 * kKiB);
  EXPECT_EQ(GradientSlotType(spec, 0), DType::kF32);
}

TEST(StateBytes, AccumulationInSixteenBitsNeedsFp32SlotsAndOneStagingShardARank) {
  JobSpec spec = SmallSpec();
  spec.dtype = DType::kBF16;
  spec.parameters[2].element_begin = 0;
  EXPECT_EQ(GradientSlotType(spec, 0), DType::kBF16);
  EXPECT_EQ(StateBytesOf(spec).gradient, 8 * kKiB);  // 4 KiB, and 2 KiB rounded up
  EXPECT_EQ(StateBytesOf(spec).param16, 8 * kKiB);
  spec.micro_batches = 4;
  const StateBytes sum = StateBytesOf(spec);
  EXPECT_EQ(GradientSlotType(spec, 0), DType::kF32);
  EXPECT_EQ(sum.gradient, 12 * kKiB);
  // Each rank's largest shard: 1024 x 2 bytes, rounded up to a page.
  EXPECT_EQ(sum.staging, 8 * kKiB);
}

// 2048 and 1024 elements.
StateBytes BytesOfStates(OptimizerRule rule, StateForm states, double momentum = 0) {
  JobSpec spec = SmallSpec();
  spec.dtype = DType::kBF16;
  spec.parameters[2].element_begin = 0;
  spec.optimizer.rule = rule;
  spec.optimizer.states = states;
  spec.optimizer.momentum = momentum;
  EXPECT_TRUE(Validate(spec).ok()) << Validate(spec).Format();
  return StateBytesOf(spec);
}

TEST(StateBytes, ARulePaysForNoPlaneThatItDoesNotNeed) {
  const StateBytes adam = BytesOfStates(OptimizerRule::kAdam, StateForm::kF32);
  const StateBytes plain = BytesOfStates(OptimizerRule::kSgd, StateForm::kF32);
  const StateBytes sgd = BytesOfStates(OptimizerRule::kSgd, StateForm::kF32, 0.9);
  const StateBytes lion = BytesOfStates(OptimizerRule::kLion, StateForm::kF32);
  const StateBytes adagrad = BytesOfStates(OptimizerRule::kAdagrad, StateForm::kF32);
  EXPECT_EQ(plain.momentum + plain.variance, 0U);
  EXPECT_EQ(sgd.momentum, adam.momentum);
  EXPECT_EQ(sgd.variance, 0U);
  EXPECT_EQ(lion.momentum, adam.momentum);
  EXPECT_EQ(lion.variance, 0U);
  EXPECT_EQ(adagrad.momentum, 0U);
  EXPECT_EQ(adagrad.variance, adam.variance);
}

TEST(StateBytes, SmallerStatesTakeTheBytesThatTheySay) {
  const StateBytes split = BytesOfStates(OptimizerRule::kAdamW, StateForm::kSplit);
  EXPECT_EQ(split.master, 8 * kKiB);  // 4 KiB, and 2 KiB rounded up
  EXPECT_EQ(split.param16, 8 * kKiB);
  EXPECT_EQ(split.momentum, 12 * kKiB);
  EXPECT_EQ(split.staging, 8 * kKiB) << "the weights come as fp32, a shard of 1024 at most";
  const StateBytes bf16 = BytesOfStates(OptimizerRule::kAdamW, StateForm::kSplitBf16);
  EXPECT_EQ(bf16.momentum, 8 * kKiB);
  EXPECT_EQ(bf16.variance, 8 * kKiB);
  EXPECT_EQ(MomentBytes(StateForm::kSplit8, uint64_t{1} << 20), (1U << 20) + (1U << 17))
      << "a scale of 4 bytes for 32 elements";
  EXPECT_EQ(MomentBytes(StateForm::kSplit8, 33), 64U + 8U);
}

}  // namespace job_spec_test
}  // namespace tidepool::shm
