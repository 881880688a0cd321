// Replay against an exhaustive search, and its steps carried out early.
#include "trainer/plan/replay.h"

#include <gtest/gtest.h>

#include "tests/trainer/plan/exhaustive.h"
#include "tests/trainer/plan/random_schedule.h"
#include "trainer/layout/build_layout.h"

namespace tidepool::trainer {
namespace replay_test {

ReplaySetup WithBlocks(uint32_t chunks, uint64_t blocks) {
  return {std::vector<bool>(chunks, true), blocks, {}};
}

TEST(Replay, BeladyEqualsTheExhaustiveOptimum) {
  uint64_t compared = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const AccessSchedule schedule = RandomSchedule(seed, 6, 16);
    for (uint32_t blocks = 2; blocks <= 5; ++blocks) {
      const uint32_t fewest = Exhaustive(schedule, blocks).Fewest();
      const Result<Plan> plan = BeladySimulate(schedule, WithBlocks(6, blocks));
      ASSERT_EQ(plan.ok(), fewest < Exhaustive::kImpossible)
          << "seed " << seed << ", " << blocks << " blocks";
      if (!plan.ok()) continue;
      EXPECT_EQ(plan.value().fetches, fewest) << "seed " << seed << ", " << blocks << " blocks";
      ++compared;
    }
  }
  EXPECT_GT(compared, 1000u);
}

TEST(Replay, SmallestRcacheIsExact) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const AccessSchedule schedule = RandomSchedule(seed, 6, 40);
    const uint64_t smallest = SmallestRcache(schedule, std::vector<bool>(6, true));
    EXPECT_TRUE(BeladySimulate(schedule, WithBlocks(6, smallest)).ok()) << seed;
    if (smallest == 0) continue;
    const Status status = BeladySimulate(schedule, WithBlocks(6, smallest - 1)).status();
    EXPECT_EQ(status.id(), ErrorId::kRcacheTooSmall) << seed;
    EXPECT_NE(status.what().find("needs " + std::to_string(smallest) + " "), std::string::npos);
  }
}

// Carries the steps out as early as each one allows, and looks whether every moment still finds
// what it needs.
void ExpectEarlyStepsAreSound(const AccessSchedule& schedule, const Plan& plan, uint64_t blocks) {
  std::set<ChunkId> present, pinned;
  size_t next = 0;
  for (uint64_t position = 0; position < schedule.moments.size(); ++position) {
    const Moment& moment = schedule.moments[position];
    const auto held = [&](ChunkId c) {
      return std::find(moment.chunks.begin(), moment.chunks.end(), c) != moment.chunks.end();
    };
    for (; next < plan.steps.size() && plan.steps[next].earliest <= position; ++next) {
      const PlanStep& step = plan.steps[next];
      ASSERT_LE(step.earliest, step.needed_at);
      if (step.victim != kNoChunk) {
        ASSERT_FALSE(held(step.victim) || pinned.count(step.victim));
        ASSERT_EQ(present.erase(step.victim), 1u);
      }
      ASSERT_TRUE(present.insert(step.chunk).second) << "chunk " << step.chunk << " came twice";
      ASSERT_LE(present.size(), blocks);
    }
    for (const ChunkId chunk : moment.chunks)
      ASSERT_TRUE(present.count(chunk)) << "moment " << position;
    if (moment.kind == MomentKind::kUse) continue;
    ASSERT_TRUE(present.count(moment.subject)) << "moment " << position;
    pinned.insert(moment.subject);
    if (moment.kind == MomentKind::kSubmit) {
      present.erase(moment.subject);
      pinned.erase(moment.subject);
    }
  }
  EXPECT_EQ(next, plan.steps.size());
}

TEST(Replay, StepsMayRunAsEarlyAsTheySay) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const AccessSchedule schedule = RandomSchedule(seed, 9, 60);
    for (uint64_t blocks = SmallestRcache(schedule, std::vector<bool>(9, true)); blocks <= 9;
         ++blocks) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", blocks " + std::to_string(blocks));
      const Plan plan = BeladySimulate(schedule, WithBlocks(9, blocks)).value();
      ASSERT_NO_FATAL_FAILURE(ExpectEarlyStepsAreSound(schedule, plan, blocks));
    }
  }
}

TEST(Replay, ATrainingStepReusesTheTailOfForward) {
  // 10 chunks, 4 blocks: forward fetches all; backward finds the last four, and needs the other six
  // again.
  const Plan plan = BeladySimulate(TrainingSchedule(10, 1), WithBlocks(10, 4)).value();
  EXPECT_EQ(plan.fetches, 10u + 6u);
  EXPECT_EQ(plan.submits, 10u);
  // With room for all, each is fetched once; the next micro-batch fetches again what gradients have
  // replaced.
  EXPECT_EQ(BeladySimulate(TrainingSchedule(10, 1), WithBlocks(10, 10)).value().fetches, 10u);
  EXPECT_EQ(BeladySimulate(TrainingSchedule(10, 3), WithBlocks(10, 10)).value().fetches, 30u);
}

TEST(Replay, ResidentChunksTakeNoBlockAndStay) {
  AccessSchedule schedule;
  for (int round = 0; round < 3; ++round) {
    for (ChunkId c = 0; c < 4; ++c)
      schedule.moments.push_back({MomentKind::kUse, 0, {0, c == 0 ? 1 : c}});
  }
  ReplaySetup setup = WithBlocks(4, 1);
  setup.evictable[0] = false;
  const Plan plan = BeladySimulate(schedule, setup).value();
  EXPECT_EQ(plan.fetches_of_chunk[0], 1u);
  EXPECT_GE(plan.fetches, 1u + 3u);
  EXPECT_EQ(SmallestRcache(schedule, setup.evictable), 1u);
}

TEST(Replay, ChunksThatArePresentAtTheStartAreNotFetched) {
  AccessSchedule schedule{
      {{MomentKind::kUse, 0, {2}}, {MomentKind::kUse, 0, {3}}, {MomentKind::kUse, 0, {4}}}};
  ReplaySetup setup = WithBlocks(5, 3);
  setup.present = {2, 0};
  const Plan plan = BeladySimulate(schedule, setup).value();
  ASSERT_EQ(plan.fetches, 2u);
  EXPECT_EQ(plan.steps[0].chunk, 3u);
  EXPECT_EQ(plan.steps[0].victim, kNoChunk);
  EXPECT_EQ(plan.steps[1].victim, 0u);  // of 0, 2 and 3 none is used again: the lowest id
  EXPECT_EQ(plan.steps[1].earliest, 0u);
}

TEST(Replay, TrafficIsOneShardAFetchAndASubmission) {
  std::vector<ParameterNote> notes;
  for (int i = 0; i < 8; ++i) notes.push_back({"p" + std::to_string(i), {64}, 0, 0, false});
  LayoutOptions options;
  options.world = 2;
  options.chunk_bytes = 64 * 4;
  const ChunkLayout layout = BuildLayout(notes, options).value();
  ASSERT_EQ(layout.chunks.size(), 8u);
  const Plan plan = BeladySimulate(TrainingSchedule(8, 1), WithBlocks(8, 2)).value();
  const StepTraffic traffic = TrafficOf(plan, layout);
  EXPECT_EQ(traffic.bytes_h2d, (8 + 6) * 32 * 4u);
  EXPECT_EQ(traffic.bytes_d2h, 8 * 32 * 4u);
}

TEST(AccessSchedule, FirstUseOrderIsThatOfForward) {
  EXPECT_EQ(FirstUseOrder(TrainingSchedule(5, 2)), (std::vector<ChunkId>{0, 1, 2, 3, 4}));
}

}  // namespace replay_test
}  // namespace tidepool::trainer
