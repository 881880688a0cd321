// What ranks say of a step: together, through the loop to the factors of the update, across a kill
// of the server, and in a job of a layout that has no place for it.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "memserver/update/step_numbers.h"
#include "memserver/update/update_factors.h"
#include "optim/update_rule.h"
#include "tests/fakes/small_trainer.h"

namespace tidepool::memserver {
namespace step_numbers_test {

// Chunk 0, with parameters 0 and 1, belongs to ranks 0 and 1; chunk 1, with 2 and 3, to rank 1.
shm::JobSpec TwoGroups() {
  shm::JobSpec spec = MakeSpec({.world = 2});
  spec.data_groups.push_back({2});
  spec.chunks[1].data_group = 1;
  return spec;
}

void Say(StepNumbers* numbers, Rank rank, uint64_t untouched) {
  const std::vector<uint64_t> set{untouched};
  for (const shm::Request& request : shm::UntouchedRequestsOf(set, 4, 0))
    ASSERT_EQ(numbers->Take(rank, request), nullptr);
}

TEST(StepNumbers, AParameterIsLeftAloneWhereAllItsRanksSaySo) {
  const shm::JobSpec spec = TwoGroups();
  StepNumbers numbers(&spec);
  EXPECT_FALSE(numbers.Together().any());
  Say(&numbers, 1, 0b1111);
  EXPECT_EQ(numbers.Together().untouched, std::vector<uint64_t>{0b1100})
      << "rank 0 has said nothing, and is no member of the second chunk";
  Say(&numbers, 0, 0b0010);
  EXPECT_EQ(numbers.Together().untouched, std::vector<uint64_t>{0b1110});
  EXPECT_EQ(numbers.waiting(0).size(), 1U);
  numbers.Clear();
  EXPECT_FALSE(numbers.Together().any());
  EXPECT_TRUE(numbers.waiting(0).empty());
}

TEST(StepNumbers, RanksAgreeOnNumbersOrNot) {
  const shm::JobSpec spec = TwoGroups();
  StepNumbers numbers(&spec);
  const GroupNumbers own = NumbersOf(spec.optimizer, 0.5F, 0.25F);
  ASSERT_EQ(numbers.Take(0, shm::GroupNumbersRequestOf(1, own, 0)), nullptr);
  EXPECT_FALSE(numbers.Agree(0, 1));
  ASSERT_EQ(numbers.Take(1, shm::GroupNumbersRequestOf(1, own, 0)), nullptr);
  EXPECT_TRUE(numbers.Agree(0, 1));
  const StepSaid said = numbers.Together();
  EXPECT_EQ(said.groups, 2U);
  EXPECT_EQ(said.numbers[1], own);
}

TEST(StepNumbers, TheFirstRankThatTellsIsBelieved) {
  const shm::JobSpec spec = TwoGroups();
  StepNumbers numbers(&spec);
  EXPECT_FALSE(numbers.facts());
  ASSERT_EQ(numbers.Take(1, shm::StepFactsRequestOf({.loss = 2, .tokens = 7}, 0)), nullptr);
  EXPECT_EQ(numbers.facts()->tokens, 7U);
  ASSERT_EQ(numbers.Take(0, shm::StepFactsRequestOf({.loss = 1, .tokens = 8}, 0)), nullptr);
  EXPECT_EQ(numbers.facts()->tokens, 8U);
  EXPECT_EQ(numbers.waiting(0).size(), 1U) << "answered with the end of the step";
  EXPECT_NE(numbers.Take(0, shm::StepFactsRequestOf({}, 0)), nullptr) << "told twice";
  EXPECT_FALSE(numbers.Together().any()) << "nothing of it is kept";
  numbers.Clear();
  EXPECT_FALSE(numbers.facts());
}

bool Same(const optim::StepFactors& a, const optim::StepFactors& b) {
  return a.rule == b.rule && a.gradient_scale == b.gradient_scale &&
         std::memcmp(a.numbers, b.numbers, sizeof a.numbers) == 0;
}

TEST(UpdateFactors, CountTheStepsOfEachParameter) {
  const shm::JobSpec spec = MakeSpec({});
  StepRecord record{};
  record.optimizer_step = 9;
  record.learning_rate = 0.5F;
  record.gradient_scale = 1;
  const std::vector<uint32_t> words{0, 0, 3, kLeftAlone | 2};
  UpdateFactors factors;
  factors.Make(spec, record, StepView{0, {}, words});

  const auto expected = [&](uint32_t group, uint64_t step) {
    const shm::ParameterGroup& own = spec.parameter_groups[group];
    return optim::MakeFactors(spec.optimizer, {0.5F, step, 1}, {own.lr_scale, own.weight_decay});
  };
  EXPECT_TRUE(Same(*factors.OfChunk(0).Of(0, 0), expected(0, 9)));
  EXPECT_TRUE(Same(*factors.OfChunk(0).Of(1, 1), expected(1, 9)));
  EXPECT_TRUE(Same(*factors.OfChunk(2).Of(0, 0), expected(0, 6)));
  EXPECT_EQ(factors.OfChunk(2).Of(1, 1), nullptr);

  factors.Make(spec, record, std::nullopt);
  EXPECT_TRUE(Same(*factors.OfChunk(2).Of(1, 1), expected(1, 9)));
}

TEST(UpdateFactors, TakeTheNumbersOfAGroupInPlaceOfTheJobs) {
  const shm::JobSpec spec = MakeSpec({});
  StepRecord record{};
  record.optimizer_step = 2;
  record.learning_rate = 0.5F;
  OptimizerSpec rule = spec.optimizer;
  rule.beta1 = 0.75;
  const std::vector<GroupNumbers> numbers{{}, NumbersOf(rule, 0.125F, 0.25F)};
  UpdateFactors factors;
  factors.Make(spec, record, StepView{2, numbers, {}});
  rule.eps = static_cast<float>(rule.eps);
  EXPECT_TRUE(
      Same(*factors.OfChunk(0).Of(1, 1), optim::MakeFactors(rule, {0.125F, 2, 0}, {1, 0.25F})));
  EXPECT_TRUE(Same(*factors.OfChunk(0).Of(0, 0),
                   optim::MakeFactors(spec.optimizer, {0.5F, 2, 0},
                                      {1, spec.parameter_groups[0].weight_decay})));
}

WorldOptions Kept() {
  return {.loop = {.times = {.lease_ns = 100 * kNsPerSecond}, .rcache_limit = 64 * kMiB}};
}

TEST(StepsInTheLoop, AParameterThatIsLeftAloneKeepsItsBits) {
  ServeWorld world;
  SmallTrainer trainer(&world, MakeSpec({.world = 2}));
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(3);
  trainer.Step({.seed = 1});
  const auto before = trainer.FetchParameters();
  trainer.Step({.seed = 2, .untouched = {1, 2}});
  const auto after = trainer.FetchParameters();
  for (size_t id = 0; id < before.size(); ++id)
    EXPECT_EQ(before[id] == after[id], id == 1 || id == 2) << id;
}

TEST(StepsInTheLoop, WhatWasSaidOfADroppedAttemptCountsForNoOther) {
  ServeWorld world;
  SmallTrainer trainer(&world, MakeSpec({}));
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(3);
  const shm::Completion dropped = trainer.Step({.poisoned = true, .untouched = {1, 2}});
  ASSERT_EQ(dropped.error, static_cast<uint32_t>(ErrorId::kNonFinite));
  const auto before = trainer.FetchParameters();
  ASSERT_EQ(trainer.Step({.seed = 2}).error, 0U);
  const auto after = trainer.FetchParameters();
  for (size_t id = 0; id < before.size(); ++id) EXPECT_NE(before[id], after[id]) << id;
}

TEST(StepsInTheLoop, APlainJobWritesNoSlot) {
  ServeWorld world;
  SmallTrainer trainer(&world, MakeSpec({}));
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(3);
  for (int step = 0; step < 3; ++step) trainer.Step({.seed = 2});
  const Job& job = *world.tables().FindJob("job");
  EXPECT_EQ(job.states->record().slotted_from.load(), 0U);
  EXPECT_FALSE(job.states->records().slots().Of(3).has_value());
}

// As a server of layout 8 left it: the job has no slots, and goes on as it began.
TEST(StepsInTheLoop, AJobOfTheLayoutBeforeTakesWhatIsNotReachedForZero) {
  ServeWorld world(Kept());
  SmallTrainer trainer(&world, MakeSpec({}));
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(3);
  trainer.Step({.seed = 1});
  world.Settle();
  JobRecord& record = world.tables().FindJob("job")->states->record();
  record.layout = kLayoutStepSlots - 1;
  record.crc = CrcOf(record);
  world.Restart();
  ASSERT_TRUE(world.recovered().ok()) << world.recovered().Line();
  ASSERT_TRUE(world.Resume(&trainer.rank(0), trainer.spec()));
  const Job& job = *world.tables().FindJob("job");
  EXPECT_FALSE(job.states->records().slots().Exist());

  const auto before = trainer.FetchParameters();
  ASSERT_EQ(trainer.Step({.seed = 2, .untouched = {1}}).error, 0U);
  EXPECT_NE(before[1], trainer.FetchParameters()[1]) << "the gradient that came is not zero";
  trainer.rank(0).Send(
      shm::GroupNumbersRequestOf(0, NumbersOf(trainer.spec().optimizer, 1, 0), trainer.version()));
  world.Settle();
  EXPECT_EQ(trainer.rank(0).Ended(), ErrorId::kProtocolViolation);
}

}  // namespace step_numbers_test
}  // namespace tidepool::memserver
