// The contract of EvictionPolicy, for each form; then what each form promises beyond it.
#include "trainer/plan/eviction_policy.h"

#include <functional>
#include <memory>

#include <gtest/gtest.h>

#include "tests/trainer/plan/random_schedule.h"
#include "trainer/plan/replay.h"

namespace tidepool::trainer {
namespace eviction_policy_test {

constexpr uint32_t kChunks = 9;

struct Form {
  const char* name;
  std::function<std::unique_ptr<EvictionPolicy>(const NextUses*)> make;
};

class EvictionPolicyContract : public ::testing::TestWithParam<Form> {};

// Feeds a schedule to the policy and asks for a victim now and then.
std::vector<ChunkId> Answers(EvictionPolicy* policy, const AccessSchedule& schedule,
                             uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<ChunkId> answers;
  for (uint64_t position = 0; position < schedule.moments.size(); ++position) {
    for (const ChunkId chunk : schedule.moments[position].chunks) policy->Used(chunk, position);
    std::vector<ChunkId> candidates;
    for (ChunkId chunk = 0; chunk < kChunks; ++chunk) {
      if (random.Below(2) == 0) candidates.push_back(chunk);
    }
    if (candidates.empty()) continue;
    const ChunkId victim = policy->Victim(candidates, position);
    EXPECT_TRUE(std::binary_search(candidates.begin(), candidates.end(), victim));
    answers.push_back(victim);
  }
  return answers;
}

TEST_P(EvictionPolicyContract, NamesACandidateAndDependsOnItsCallsOnly) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const AccessSchedule schedule = RandomSchedule(seed, kChunks, 50);
    const NextUses next(schedule, kChunks);
    const auto one = GetParam().make(&next), other = GetParam().make(&next);
    EXPECT_EQ(Answers(one.get(), schedule, seed), Answers(other.get(), schedule, seed));
  }
}

TEST_P(EvictionPolicyContract, ASingleCandidateIsTheVictim) {
  const AccessSchedule schedule = RandomSchedule(1, kChunks, 10);
  const NextUses next(schedule, kChunks);
  const auto policy = GetParam().make(&next);
  EXPECT_EQ(policy->Victim(std::vector<ChunkId>{7}, 3), 7u);
  EXPECT_STREQ(policy->name(), GetParam().name);
}

TEST_P(EvictionPolicyContract, BeladyNeedsNoMoreFetches) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const AccessSchedule schedule = RandomSchedule(seed, kChunks, 80);
    const NextUses next(schedule, kChunks);
    const ReplaySetup setup{std::vector<bool>(kChunks, true), 5, {}};
    const auto policy = GetParam().make(&next);
    const Result<Plan> plan = Replay(schedule, setup, policy.get());
    if (!plan.ok()) continue;
    EXPECT_LE(BeladySimulate(schedule, setup).value().fetches, plan.value().fetches);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Forms, EvictionPolicyContract,
    ::testing::Values(
        Form{"random", [](const NextUses*) { return std::make_unique<RandomEviction>(7); }},
        Form{"lru", [](const NextUses*) { return std::make_unique<LruEviction>(kChunks); }},
        Form{"belady",
             [](const NextUses* next) { return std::make_unique<BeladyEviction>(next); }}),
    [](const ::testing::TestParamInfo<Form>& form) { return std::string(form.param.name); });

TEST(LruEviction, NamesTheOneUsedLongestAgoAlsoAcrossPasses) {
  LruEviction lru(4);
  lru.Used(2, 10);
  lru.Used(1, 11);
  lru.Used(3, 0);  // the next pass counts from 0 again
  EXPECT_EQ(lru.Victim(std::vector<ChunkId>{1, 2, 3}, 1), 2u);
  EXPECT_EQ(lru.Victim(std::vector<ChunkId>{1, 3}, 1), 1u);
  EXPECT_EQ(lru.Victim(std::vector<ChunkId>{0, 2}, 1), 0u);  // never used
}

TEST(RandomEviction, SeedsDiffer) {
  const std::vector<ChunkId> candidates{0, 1, 2, 3, 4, 5, 6, 7};
  RandomEviction one(1), other(2);
  int equal = 0;
  for (int i = 0; i < 64; ++i) equal += one.Victim(candidates, 0) == other.Victim(candidates, 0);
  EXPECT_LT(equal, 32);
}

TEST(BeladyEviction, ContentReplacedByGradientsHasNoNextUse) {
  // Chunk 0 is used again only after its gradients have left; chunk 1 is used last of all, but its
  // content stays good.
  const AccessSchedule schedule{{{MomentKind::kUse, 0, {0, 1}},
                                 {MomentKind::kBorrow, 0, {}},
                                 {MomentKind::kSubmit, 0, {}},
                                 {MomentKind::kUse, 0, {0}},
                                 {MomentKind::kUse, 0, {1}}}};
  const NextUses next(schedule, 2);
  BeladyEviction belady(&next);
  EXPECT_EQ(next.After(0, 0), kNeverUsed);
  EXPECT_EQ(next.After(1, 0), 4u);
  EXPECT_EQ(belady.Victim(std::vector<ChunkId>{0, 1}, 0), 0u);
}

}  // namespace eviction_policy_test
}  // namespace tidepool::trainer
