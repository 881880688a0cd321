// Budgets by moment: what is in memory never exceeds the limit, however early the steps of a plan
// start.
#include "trainer/plan/moment_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "tests/trainer/plan/random_schedule.h"
#include "trainer/plan/replay.h"

namespace tidepool::trainer {
namespace moment_budget_test {

constexpr uint32_t kChunks = 9;

// Blocks of random size in a random order, beside bytes that rise and fall.
struct Case {
  explicit Case(uint64_t seed) : random(seed), schedule(RandomSchedule(seed, kChunks, 60)) {
    needs = BlocksNeeded(schedule, std::vector<bool>(kChunks, true));
    room.block_bytes = 1 + random.Below(1 << 20);
    room.resident = random.Below(1 << 22);
    room.blocks = kChunks;
    uint64_t bytes = random.Below(1 << 22);
    for (size_t moment = 0; moment < schedule.moments.size(); ++moment) {
      const uint64_t change = random.Below(1 << 21);
      bytes = random.Below(2) == 0 ? bytes + change : bytes - std::min(bytes, change);
      others.push_back(bytes);
    }
    room.limit = SmallestLimit(needs, others, room) + random.Below(6) * room.block_bytes / 2;
    if (seed % 3 == 0) present = {1, 4, 7};  // what a pass before has left
  }

  Result<Plan> MakePlan() const {
    return BeladySimulate(schedule, {std::vector<bool>(kChunks, true), room.blocks, present,
                                     BlockBudgets(others, room)});
  }

  mutable SplitMix64 random;
  AccessSchedule schedule;
  std::vector<uint64_t> needs, others;
  MemoryRoom room;
  std::vector<ChunkId> present = {};
};

// Carries a plan out, each step as early as `begins` says, and looks at the bytes on the way.
class Replayed {
 public:
  Replayed(const Case& made, const Plan& plan)
      : case_(made), plan_(plan), present_(made.present.begin(), made.present.end()) {}

  template <typename Begins>
  void Run(const Begins& begins) {
    const auto& moments = case_.schedule.moments;
    for (position_ = 0; position_ < moments.size(); ++position_) {
      const Moment& moment = moments[position_];
      Start([&](const PlanStep& step) {
        return step.needed_at == position_ || (step.fetch && begins(step) <= position_);
      });
      for (const ChunkId chunk : moment.chunks) ASSERT_TRUE(present_.contains(chunk));
      if (moment.kind != MomentKind::kUse) {
        ASSERT_TRUE(present_.contains(moment.subject));
      }
      ASSERT_NO_FATAL_FAILURE(Look());
      if (moment.kind != MomentKind::kSubmit) continue;
      present_.erase(moment.subject);
      // Behind a submission the steps of the next moment may start (ChunkGradients::Submit).
      Start([&](const PlanStep& step) { return step.fetch && begins(step) <= position_ + 1; });
      ASSERT_NO_FATAL_FAILURE(Look());
    }
    EXPECT_EQ(next_, plan_.steps.size());
  }
  uint64_t most() const { return most_; }

 private:
  template <typename May>
  void Start(const May& may) {
    for (; next_ < plan_.steps.size() && may(plan_.steps[next_]); ++next_) {
      const PlanStep& step = plan_.steps[next_];
      if (step.victim != kNoChunk) {
        EXPECT_EQ(present_.erase(step.victim), 1u);
      }
      if (step.chunk != kNoChunk) {
        EXPECT_TRUE(present_.insert(step.chunk).second);
      }
    }
  }

  void Look() {
    const MemoryRoom& room = case_.room;
    const uint64_t bytes =
        room.resident + present_.size() * room.block_bytes + case_.others[position_];
    ASSERT_LE(bytes, room.limit) << "moment " << position_;
    most_ = std::max(most_, bytes);
  }

  const Case& case_;
  const Plan& plan_;
  std::set<ChunkId> present_;
  size_t next_ = 0;
  uint64_t position_ = 0, most_ = 0;
};

#ifdef TIDEPOOL_SANITIZED
constexpr uint64_t kReplays = 1'000;  // sanitizers make one five times slower
#else
constexpr uint64_t kReplays = 10'000;
#endif

TEST(MomentBudget, MemoryInUseIsNeverAboveTheLimit) {
  uint64_t shed = 0, early = 0, close = 0;
  for (uint64_t seed = 0; seed < kReplays; ++seed) {
    SCOPED_TRACE(seed);
    const Case made(seed);
    const Result<Plan> planned = made.MakePlan();
    ASSERT_TRUE(planned.ok()) << planned.status().Format();
    const Plan& plan = planned.value();
    for (const PlanStep& step : plan.steps) {
      shed += step.chunk == kNoChunk;
      early += step.fetch && step.earliest < step.needed_at;
    }

    Replayed at_once(made, plan), in_time(made, plan), at_random(made, plan);
    ASSERT_NO_FATAL_FAILURE(at_once.Run([](const PlanStep& step) { return step.earliest; }));
    ASSERT_NO_FATAL_FAILURE(in_time.Run([](const PlanStep& step) { return step.needed_at; }));
    ASSERT_NO_FATAL_FAILURE(at_random.Run([&](const PlanStep& step) {
      return step.earliest + made.random.Below(step.needed_at - step.earliest + 1);
    }));
    close += at_once.most() + made.room.block_bytes > made.room.limit;
  }
  EXPECT_GT(shed, kReplays);
  EXPECT_GT(early, 5 * kReplays);
  EXPECT_GT(close, kReplays / 2) << "the room that there is is used";
}

TEST(MomentBudget, NoLimitBelowTheSmallestWorks) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    Case made(seed);
    made.room.limit = SmallestLimit(made.needs, made.others, made.room);
    EXPECT_TRUE(made.MakePlan().ok());
    if (--made.room.limit < made.room.resident) continue;
    bool fits = true;
    const std::vector<uint64_t> budgets = BlockBudgets(made.others, made.room);
    for (size_t i = 0; i < budgets.size(); ++i) fits = fits && budgets[i] >= made.needs[i];
    EXPECT_EQ(made.MakePlan().ok(), fits);
  }
}

// Two blocks fit beside 30 bytes of 100, one beside 60.
TEST(MomentBudget, CountsTheLargerOfTwoNeighbours) {
  const MemoryRoom room{.limit = 100, .resident = 10, .block_bytes = 30, .blocks = 5};
  EXPECT_EQ(BlockBudgets({30, 60, 30, 30, 95}, room), (std::vector<uint64_t>{2, 1, 1, 2, 0}));
  EXPECT_EQ(SmallestLimit({1, 2, 1, 3, 1}, {30, 60, 30, 30, 95}, room), 135u);
}

TEST(MomentBudget, AFifthOfTheLimitIsForChunksOfAWarmUp) {
  EXPECT_EQ(WarmUpBlocks({.limit = 1000, .resident = 50, .block_bytes = 30, .blocks = 7}), 5u)
      << "200 bytes, of which 50 are resident";
  EXPECT_EQ(WarmUpBlocks({.limit = 10'000, .resident = 50, .block_bytes = 30, .blocks = 7}), 7u);
  EXPECT_EQ(WarmUpBlocks({.limit = 200, .resident = 50, .block_bytes = 30, .blocks = 7}), 0u);
}

// Frozen chunks outlive a step: those that the next forward needs first are kept.
TEST(MomentBudget, EvictionLooksIntoTheNextPass) {
  AccessSchedule schedule;
  for (ChunkId chunk = 0; chunk < 6; ++chunk)
    schedule.moments.push_back({MomentKind::kUse, 0, {chunk}});
  const Plan plan = BeladySimulate(schedule, {std::vector<bool>(6, true), 3, {}, {}}).value();
  std::set<ChunkId> present;
  for (const PlanStep& step : plan.steps) {
    present.erase(step.victim);
    present.insert(step.chunk);
  }
  EXPECT_EQ(present, (std::set<ChunkId>{0, 1, 5}));
}

}  // namespace moment_budget_test
}  // namespace tidepool::trainer
