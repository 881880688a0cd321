// The rCache's two promises about size: on the order that a GPT really has, no policy fetches less;
// and an rCache that is too small is told the smallest size that works.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/trainer/parity/rig.h"
#include "tests/trainer/plan/exhaustive.h"
#include "trainer/profile/step_profile.h"
#include "trainer/run/run_plan.h"

namespace tidepool::trainer {
namespace rcache_size_test {

// Two layers: about eleven chunks that need a block, so that all evictions can be tried.
RigOptions SmallRig(const std::string& rcache) {
  RigOptions options = DefaultRig();
  options.shape.layers = 2;
  options.run.training.steps = 3;
  options.run.memory.rcache = rcache;
  return options;
}

// The order as if resident chunks did not exist, the others numbered from 0.
AccessSchedule WithoutResidents(const RigResult& run, uint32_t* chunks) {
  std::vector<ChunkId> number(run.evictable.size());
  *chunks = 0;
  for (size_t chunk = 0; chunk < run.evictable.size(); ++chunk)
    number[chunk] = run.evictable[chunk] ? (*chunks)++ : 0;
  AccessSchedule order;
  for (const Moment& moment : run.order.moments) {
    Moment kept;
    for (const ChunkId chunk : moment.chunks) {
      if (run.evictable[chunk]) kept.chunks.push_back(number[chunk]);
    }
    const bool has_subject = moment.kind != MomentKind::kUse && run.evictable[moment.subject];
    if (has_subject) kept.kind = moment.kind, kept.subject = number[moment.subject];
    if (has_subject || !kept.chunks.empty()) order.moments.push_back(kept);
  }
  return order;
}

// Fetches of resident chunks, the same by any policy: one in each stretch between two of their
// submissions.
uint64_t Residents(const RigResult& run) {
  std::vector<bool> there = run.evictable;
  uint64_t fetches = 0;
  const auto need = [&](ChunkId chunk) {
    fetches += !there[chunk];
    there[chunk] = true;
  };
  for (const Moment& moment : run.order.moments) {
    for (const ChunkId chunk : moment.chunks) need(chunk);
    if (moment.kind == MomentKind::kGradient) need(moment.subject);
    if (moment.kind == MomentKind::kBorrow) there[moment.subject] = true;
    if (moment.kind == MomentKind::kSubmit) there[moment.subject] = run.evictable[moment.subject];
  }
  return fetches;
}

void ExpectFewestFetches(const RigOptions& options) {
  const RigResult run = TrainThroughServer(options);
  uint32_t chunks = 0;
  const AccessSchedule order = WithoutResidents(run, &chunks);
  ASSERT_GE(chunks, 8U);
  ASSERT_LE(chunks, 13U) << "so many that trying all evictions takes too long";
  const uint64_t fewest = Exhaustive(order, static_cast<uint32_t>(run.blocks)).Fewest();
  ASSERT_LT(fewest, Exhaustive::kImpossible);
  ASSERT_EQ(run.fetches.size(), options.run.training.steps);
  for (uint64_t step = 1; step < options.run.training.steps; ++step)
    EXPECT_EQ(run.fetches[step], fewest + Residents(run)) << "step " << step + 1;
  EXPECT_GE(run.fetches[0], fewest + Residents(run)) << "the recording step, with random evictions";
}

TEST(FetchesOfAGpt, AreTheFewestThatAnyPolicyNeeds) {
  for (const char* rcache : {"30%", "40%", "60%", "100%"}) {
    SCOPED_TRACE(rcache);
    ExpectFewestFetches(SmallRig(rcache));
  }
}

TEST(FetchesOfAGpt, AreTheFewestWithRecomputationAndAccumulation) {
  RigOptions options = SmallRig("40%");
  options.run.model.activation_checkpointing = true;
  ExpectFewestFetches(options);
  options.run.model.activation_checkpointing = false;
  options.run.training.micro_batches = 2;
  ExpectFewestFetches(options);
}

TEST(FetchesOfAGpt, AreTheFewestOnEachOfTwoRanks) {
  RigOptions options = SmallRig("40%");
  options.world = 2;
  ExpectFewestFetches(options);
}

// What a profile without any weight says of the order, against what the first step recorded; and of
// the bytes, against what was counted.
void ExpectToBeForeseen(const RigOptions& options) {
  const RigResult run = TrainThroughServer(options);
  const RunPlan plan =
      MakeRunPlan(options.shape, options.run, options.world, 0, "foreseen").value();
  const Result<StepProfile> profile =
      ProfileStep({.shape = plan.shape,
                   .lora = plan.lora,
                   .dtype = plan.layout.dtype,
                   .sequences = options.run.data.batch / options.world,
                   .tokens = options.run.data.context,
                   .checkpointing = options.run.model.activation_checkpointing,
                   .vocab_tiles = options.run.model.vocab_tiles});
  ASSERT_TRUE(profile.ok()) << profile.status().Format();
  const AccessSchedule order =
      ForeseeOrder(profile.value().trace, plan.layout, 0, options.run.training.micro_batches);
  EXPECT_GT(order.moments.size(), 30U);
  EXPECT_TRUE(order == run.order) << order.moments.size() << " moments foreseen, "
                                  << run.order.moments.size() << " recorded";
  const Plan replayed = BeladySimulate(order, {EvictableMask(plan.layout), run.blocks, {}}).value();
  const StepTraffic traffic = TrafficOf(replayed, plan.layout);
  EXPECT_EQ(traffic.bytes_h2d, run.moved.back().bytes_h2d);
  EXPECT_EQ(traffic.bytes_d2h, run.moved.back().bytes_d2h);
}

TEST(TheOrderOfAGpt, IsForeseen) {
  ExpectToBeForeseen(SmallRig("40%"));
  RigOptions options = SmallRig("60%");
  options.run.model.activation_checkpointing = true;
  options.run.model.dtype = "bf16";
  ExpectToBeForeseen(options);
  options.world = 2;
  options.run.training.micro_batches = 2;
  options.separate_while_recording = true;
  ExpectToBeForeseen(options);
}

// The head's chunk is held while the loss's own backward runs, and not by each tile's operators.
TEST(TheOrderOfAGpt, IsForeseenWithTilesOfTheVocabulary) {
  RigOptions options = SmallRig("40%");
  options.run.model.vocab_tiles = 3;
  ExpectToBeForeseen(options);
  options.shape.form = ModelForm::kLlama;
  options.shape.llama = {.kv_heads = options.shape.heads,
                         .head_size = options.shape.hidden / options.shape.heads,
                         .mlp = 80};
  options.run.memory.chunk_size = "32KiB";
  options.run.training.micro_batches = 2;
  ExpectToBeForeseen(options);
}

// "... at least N" at the end of the error.
uint64_t SizeNamedBy(const Status& error) {
  const std::string text = error.Format();
  const size_t at = text.find("--rcache at least ");
  EXPECT_NE(at, std::string::npos) << text;
  return at == std::string::npos ? 0 : std::stoull(text.substr(at + 18));
}

// Begins with one block, takes the size that the error names, and goes one block below it.
void ExpectTheNamedSizeToBeTheSmallest(RigOptions options) {
  options.run.memory.chunk_size = "4KiB";  // a layer's largest operators then take several chunks
  options.shape.hidden = 16;
  options.run.training.steps = 2;
  RunOptions& run = options.run;
  const ChunkLayout layout =
      MakeRunPlan(options.shape, run, options.world, 0, "size").value().layout;
  run.memory.rcache = std::to_string(layout.RcacheBytes(0, 1));
  const Result<RigResult> refused = TryThroughServer(options);
  ASSERT_EQ(refused.status().id(), ErrorId::kRcacheTooSmall) << refused.status().Format();
  const uint64_t named = SizeNamedBy(refused.status());
  run.memory.rcache = std::to_string(named);
  const Result<RigResult> trained = TryThroughServer(options);
  ASSERT_TRUE(trained.ok()) << trained.status().Format();
  ASSERT_EQ(named, layout.RcacheBytes(0, trained.value().blocks));
  run.memory.rcache = std::to_string(named - layout.BlockBytes());
  const Result<RigResult> again = TryThroughServer(options);
  EXPECT_EQ(again.status().id(), ErrorId::kRcacheTooSmall) << again.status().Format();
  EXPECT_EQ(SizeNamedBy(again.status()), named) << "found at another place, it must be the same";
}

TEST(TooSmallAnRcache, IsToldTheSmallestSizeThatWorks) {
  ExpectTheNamedSizeToBeTheSmallest(SmallRig("100%"));
}

TEST(TooSmallAnRcache, IsToldSoWhereAnEvaluationComesFirst) {
  RigOptions options = SmallRig("100%");
  options.evaluate_first = true;
  ExpectTheNamedSizeToBeTheSmallest(options);
}

TEST(TooSmallAnRcache, IsToldSoWhileGradientsAreKeptApart) {
  RigOptions options = SmallRig("100%");
  options.separate_while_recording = true;
  ExpectTheNamedSizeToBeTheSmallest(options);
}

TEST(TooSmallAnRcache, IsToldSoOnTwoRanksWithAccumulationAndRecomputation) {
  RigOptions options = SmallRig("100%");
  options.world = 2;
  options.run.training.micro_batches = 2;
  options.run.model.activation_checkpointing = true;
  ExpectTheNamedSizeToBeTheSmallest(options);
}

}  // namespace rcache_size_test
}  // namespace tidepool::trainer
