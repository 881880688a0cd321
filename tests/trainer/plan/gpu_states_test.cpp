// How many chunks have their states on GPUs: by the server's own count of bytes, to the byte.
#include "trainer/advice/gpu_states.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/units.h"
#include "shm/spec/validate.h"
#include "trainer/advice/device_memory.h"
#include "trainer/run/describe_plan.h"
#include "trainer/run/run_plan.h"

namespace tidepool::trainer {
namespace gpu_states_test {

constexpr uint64_t kMi = uint64_t{1} << 20;

// bf16; chunks of 2, 8, 8, 8 and 8 Mi elements, of which the first is always resident. The
// arithmetic below is for these: a slot has three planes of 4 bytes an element, a chunk two slots;
// staging is two times 4 Mi elements of 2 + 2 bytes where a share has a chunk so large.
class GpuStates : public ::testing::Test {
 protected:
  void SetUp() override {
    spec_.name = "gpt";
    spec_.dtype = DType::kBF16;
    for (const uint64_t elements : {2 * kMi, 8 * kMi, 8 * kMi, 8 * kMi, 8 * kMi}) {
      spec_.chunks.push_back({elements, 0});
      layout_.chunks.push_back({.elements = elements, .resident = layout_.chunks.empty()});
    }
    SetWorld(1);
  }
  void SetWorld(uint32_t world) { spec_.world = layout_.world = world; }
  Result<GpuStatesPlan> PlanFor(const std::string& wish, GpuStatesPlace place) const {
    return PlanGpuStates(ParseGpuStatesWish(wish).value(), layout_, spec_, place);
  }

  client::JobSpec spec_;
  ChunkLayout layout_;
};

TEST_F(GpuStates, WishesAreOffAutoOrASize) {
  EXPECT_EQ(ParseGpuStatesWish("off")->kind, GpuStatesWish::Kind::kOff);
  EXPECT_EQ(ParseGpuStatesWish("auto")->kind, GpuStatesWish::Kind::kAuto);
  EXPECT_EQ(ParseGpuStatesWish("1.5GiB")->kind, GpuStatesWish::Kind::kSize);
  EXPECT_EQ(ParseGpuStatesWish("1.5GiB")->bytes, 1536 * kMiB);
  for (const char* bad : {"", "on", "50%", "-1", "many"}) {
    const Status status = ParseGpuStatesWish(bad).status();
    EXPECT_EQ(status.id(), ErrorId::kConfigBadValue) << bad;
    EXPECT_EQ(status.where(), "--gpu-states");
  }
}

TEST_F(GpuStates, ASizeHoldsAsManyFirstChunksAsTheServerCountsToTheByte) {
  // Bytes of a chunk's two slots.
  const uint64_t small = 2 * 12 * 2 * kMi, large = 2 * 12 * 8 * kMi;
  const uint64_t staging_of_small = 2 * 4 * 2 * kMi, staging = 2 * 4 * 4 * kMi;
  EXPECT_EQ(GpuStateChunksIn(spec_, 1, 0), 0U);
  EXPECT_EQ(GpuStateChunksIn(spec_, 1, small + staging_of_small - 1), 0U);
  EXPECT_EQ(GpuStateChunksIn(spec_, 1, small + staging_of_small), 1U);
  for (uint32_t chunks = 2; chunks <= 5; ++chunks) {
    const uint64_t bytes = small + (chunks - 1) * large + staging;
    EXPECT_EQ(GpuStateChunksIn(spec_, 1, bytes - 1), chunks - 1);
    EXPECT_EQ(GpuStateChunksIn(spec_, 1, bytes), chunks);
    spec_.states_on_gpu = chunks;
    EXPECT_EQ(GpuStateBytesOfOne(spec_, 1), bytes) << "whatever the specification said before";
  }
  EXPECT_EQ(GpuStateChunksIn(spec_, 1, UINT64_MAX), 5U);
}

TEST_F(GpuStates, EachGpuHasTheSharesOfItsRanks) {
  SetWorld(3);
  const uint64_t small = 2 * 12 * 2 * kMi, large = 2 * 12 * 8 * kMi, staging = 2 * 4 * 4 * kMi;
  spec_.states_on_gpu = 5;  // rank 0: chunks 0 and 3; rank 1: 1 and 4; rank 2: 2
  EXPECT_EQ(GpuStateBytesOfOne(spec_, 3), 2 * large + staging) << "of rank 1";
  EXPECT_EQ(GpuStateBytesOfOne(spec_, 2), small + 2 * large + 2 * staging) << "of ranks 0 and 2";
  EXPECT_EQ(GpuStateBytesOfOne(spec_, 1), small + 4 * large + 3 * staging);
  // The fifth chunk is rank 1's second large one.
  EXPECT_EQ(GpuStateChunksIn(spec_, 3, 2 * large + staging - 1), 4U);
  EXPECT_EQ(GpuStateChunksIn(spec_, 3, 2 * large + staging), 5U);
}

TEST_F(GpuStates, AutoTakesWhatIsAlwaysResidentAndNoMore) {
  auto plan = PlanFor("auto", {.gpus = 1});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->chunks, 1U);
  EXPECT_EQ(plan->gpu_bytes, 2 * 12 * 2 * kMi + 2 * 4 * 2 * kMi);
  EXPECT_TRUE(plan->may_stay_on_host);
  EXPECT_NE(plan->why.find("always resident"), std::string::npos);
  layout_.chunks[0].resident = false;
  EXPECT_EQ(PlanFor("auto", {.gpus = 1})->chunks, 0U);
  // Frozen chunks have no states, resident or not.
  layout_.chunks[0].resident = layout_.chunks[1].resident = true;
  for (size_t chunk = 1; chunk < layout_.chunks.size(); ++chunk)
    layout_.chunks[chunk].frozen = true;
  EXPECT_EQ(PlanFor("auto", {.gpus = 1})->chunks, 1U);
}

TEST_F(GpuStates, OffAndTheHostHaveNone) {
  EXPECT_EQ(PlanFor("off", {.gpus = 1})->chunks, 0U);
  EXPECT_EQ(PlanFor("off", {.gpus = 1})->why, "--gpu-states off");
  EXPECT_EQ(PlanFor("off", {.gpus = 0})->why, "") << "nothing was to be decided";
  EXPECT_EQ(PlanFor("auto", {.gpus = 0})->chunks, 0U);
  EXPECT_EQ(PlanFor("auto", {.gpus = 0})->why, "");
}

TEST_F(GpuStates, WhatHindersThemIsALineForAutoAndAnErrorForASize) {
  struct {
    OptimizerRule rule;
    StateForm states;
    GpuStatesPlace place;
    const char* why;
    const char* fix;
  } const cases[] = {
      {OptimizerRule::kLion, StateForm::kF32, {.gpus = 1}, "not by lion", "--optimizer adamw"},
      {OptimizerRule::kAdamW, StateForm::kSplit, {.gpus = 1}, "not split", "--states fp32"},
      {OptimizerRule::kAdam,
       StateForm::kF32,
       {.gpus = 1, .why_no_kernel = "built without nvcc"},
       "built without nvcc",
       "nvcc"},
  };
  for (const auto& c : cases) {
    spec_.optimizer.rule = c.rule;
    spec_.optimizer.states = c.states;
    auto quiet = PlanFor("auto", c.place);
    ASSERT_TRUE(quiet.ok());
    EXPECT_EQ(quiet->chunks, 0U);
    EXPECT_NE(quiet->why.find(c.why), std::string::npos) << quiet->why;
    const Status loud = PlanFor("1GiB", c.place).status();
    EXPECT_EQ(loud.id(), ErrorId::kUsageError);
    EXPECT_NE(loud.what().find(c.why), std::string::npos) << loud.what();
    EXPECT_NE(loud.fix().find(c.fix), std::string::npos) << loud.fix();
  }
  spec_.optimizer = {};
  EXPECT_EQ(PlanFor("1GiB", {.gpus = 0}).status().id(), ErrorId::kUsageError);
}

TEST_F(GpuStates, ASizeWithoutRoomForOneChunkNamesTheSmallestThatHasIt) {
  const Status status = PlanFor("1MiB", {.gpus = 1}).status();
  EXPECT_EQ(status.id(), ErrorId::kConfigBadValue);
  const std::string least = std::to_string(2 * 12 * 2 * kMi + 2 * 4 * 2 * kMi);
  EXPECT_NE(status.fix().find("--gpu-states " + least), std::string::npos) << status.fix();
  EXPECT_EQ(PlanFor(least, {.gpus = 1})->chunks, 1U);
  EXPECT_FALSE(PlanFor(least, {.gpus = 1})->may_stay_on_host) << "who names a size wants it";
}

TEST_F(GpuStates, PlansAndEstimatesShowTheBytes) {
  RunOptions options;
  options.model.preset = "gpt2-124m";
  options.model.dtype = "bf16";
  options.memory.gpu_states = "1GiB";
  RunPlan plan = MakeRunPlan(options, 2, 0, "job").value();
  const uint64_t before = EstimateGpu(plan, 1, std::nullopt, {}).bytes();
  plan.gpu_states =
      PlanGpuStates(ParseGpuStatesWish("1GiB").value(), plan.layout, plan.spec, {.gpus = 2})
          .value();
  plan.spec.states_on_gpu = plan.gpu_states.chunks;
  EXPECT_TRUE(shm::Validate(plan.spec).ok()) << "the server takes what is planned";
  EXPECT_GT(plan.gpu_states.chunks, 1U);
  EXPECT_LE(plan.gpu_states.gpu_bytes, kGiB);
  EXPECT_EQ(plan.gpu_states.gpu_bytes, shm::GpuShareBytes(plan.spec, 0))
      << "rank 0 has the vocabulary";
  EXPECT_EQ(EstimateGpu(plan, 1, std::nullopt, {}).bytes(), before + plan.gpu_states.gpu_bytes);
  const std::string line = DescribeGpuStates(plan), json = PlanJson(plan);
  EXPECT_NE(
      line.find("those of the first " + std::to_string(plan.gpu_states.chunks) + " of 38 chunks"),
      std::string::npos)
      << line;
  EXPECT_NE(line.find(FormatBytes(plan.gpu_states.gpu_bytes)), std::string::npos) << line;
  const uint64_t pool = RoundUp(shm::HostStateBytesOf(plan.spec, shm::kNoSpill).total(), kMiB);
  EXPECT_NE(json.find("\"states_on_gpu\":{\"chunks\":" + std::to_string(plan.gpu_states.chunks) +
                      ",\"gpu_bytes\":" + std::to_string(plan.gpu_states.gpu_bytes) +
                      ",\"pool_bytes\":" + std::to_string(pool) + "}"),
            std::string::npos)
      << json;
}

// On the host nothing is decided, and nothing said.
TEST_F(GpuStates, ARunOnTheHostSaysNothingOfThem) {
  RunOptions options;
  RunPlan plan = MakeRunPlan(options, 1, 0, "job").value();
  ASSERT_TRUE(PlaceGpuStates(options.memory, 0, &plan).ok());
  EXPECT_EQ(plan.spec.states_on_gpu, 0U);
  EXPECT_EQ(DescribeGpuStates(plan), "");
  EXPECT_EQ(PlanJson(plan).find("states_on_gpu"), std::string::npos);
  options.memory.gpu_states = "off";
  ASSERT_TRUE(PlaceGpuStates(options.memory, 1, &plan).ok());
  EXPECT_EQ(DescribeGpuStates(plan), "states    all on the host: --gpu-states off\n");
  options.memory.gpu_states = "many";
  EXPECT_EQ(MakeRunPlan(options, 1, 0, "job").status().id(), ErrorId::kConfigBadValue)
      << "told on the host, too";
}

}  // namespace gpu_states_test
}  // namespace tidepool::trainer
