// Sets of parameters and numbers of groups, into requests and out of them again.
#include "shm/step_numbers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"
#include "tests/shm/small_spec.h"

namespace tidepool::shm {
namespace step_numbers_test {

using tidepool::testing::SmallSpec;

JobSpec SpecOf(size_t parameters) {
  JobSpec spec = SmallSpec();
  spec.parameters.assign(parameters, spec.parameters.front());
  return spec;
}

std::vector<uint64_t> RandomSet(size_t parameters, SplitMix64* random) {
  std::vector<uint64_t> set(WordsOfSet(parameters));
  // Runs and single ones.
  for (size_t i = 0; i < parameters;) {
    const uint64_t run = random->Below(2) == 0 ? 1 : random->Below(500);
    const bool in = random->Below(2) == 0;
    for (uint64_t end = i + run; i < end && i < parameters; ++i)
      set[i / 64] |= uint64_t{in} << i % 64;
  }
  return set;
}

TEST(Untouched, ComesBackAsItWas) {
  SplitMix64 random(1);
  for (int round = 0; round < 200; ++round) {
    const size_t parameters = 1 + random.Below(1500);
    const JobSpec spec = SpecOf(parameters);
    const std::vector<uint64_t> set = RandomSet(parameters, &random);
    std::vector<uint64_t> read(set.size());
    for (const Request& request : UntouchedRequestsOf(set, parameters, 7)) {
      EXPECT_EQ(request.version, 7U);
      ASSERT_EQ(ReadUntouched(request, spec, read), nullptr);
    }
    EXPECT_EQ(read, set) << round;
  }
}

TEST(Untouched, OneRequestHoldsAnyRunAndNoneAnEmptySet) {
  const std::vector<uint64_t> all(WordsOfSet(kParametersMax), ~uint64_t{0}),
      none(WordsOfSet(kParametersMax));
  EXPECT_EQ(UntouchedRequestsOf(all, kParametersMax, 0).size(), 1U);
  EXPECT_TRUE(UntouchedRequestsOf(none, kParametersMax, 0).empty());
}

TEST(Untouched, AnySetOf49152ParametersFits) {
  const std::vector<uint64_t> odd(49152 / 64, 0x5555555555555555);
  EXPECT_LE(UntouchedRequestsOf(odd, 49152, 0).size(), kUntouchedRequestsMax);
}

TEST(GroupNumbersRequests, ComeBackAsTheyWere) {
  const JobSpec spec = SmallSpec();
  const GroupNumbers numbers = NumbersOf(spec.optimizer, 0.25F, 0.5F);
  GroupNumbers read;
  const Request request = GroupNumbersRequestOf(0, numbers, 3);
  EXPECT_EQ(ReadGroupNumbers(request, spec, &read), nullptr);
  EXPECT_EQ(read, numbers);
  EXPECT_EQ(GroupOf(request), 0U);
}

TEST(StepFactsRequests, ComeBackAsTheyWere) {
  StepFacts read;
  const Request request =
      StepFactsRequestOf({.loss = 2.5F, .tokens = 4096, .cpus_shared = true}, 3);
  EXPECT_TRUE(IsStepNumbers(request));
  EXPECT_EQ(request.version, 3U);
  ASSERT_EQ(ReadStepFacts(request, &read), nullptr);
  EXPECT_EQ(read.loss, 2.5F);
  EXPECT_EQ(read.tokens, 4096U);
  EXPECT_TRUE(read.cpus_shared);
}

TEST(StepFactsRequests, WhatNoRankCanMeanIsRefused) {
  StepFacts read;
  EXPECT_NE(ReadStepFacts(StepFactsRequestOf({.tokens = kStepTokensMax}, 0), &read), nullptr);
  auto words = std::bit_cast<StepFactsRequest>(StepFactsRequestOf({}, 0));
  words.cpus_shared = 2;
  EXPECT_NE(ReadStepFacts(std::bit_cast<Request>(words), &read), nullptr);
  words.cpus_shared = 0;
  words.reserved[1] = 1;
  EXPECT_NE(ReadStepFacts(std::bit_cast<Request>(words), &read), nullptr);
}

TEST(GroupNumbersOf, EachRuleHasItsOwnAndNoOthers) {
  OptimizerSpec spec;
  for (const auto rule : {OptimizerRule::kAdamW, OptimizerRule::kAdam, OptimizerRule::kSgd,
                          OptimizerRule::kAdagrad, OptimizerRule::kLion}) {
    spec.rule = rule;
    spec.momentum = 0.5;
    const GroupNumbers own = NumbersOf(spec, 0.1F, 0.2F);
    EXPECT_EQ(WhyBad(spec, DType::kF32, own), nullptr) << NameOf(rule);
    for (double GroupNumbers::*number : {&GroupNumbers::beta1, &GroupNumbers::beta2}) {
      GroupNumbers bad = own;
      bad.*number = std::numeric_limits<double>::quiet_NaN();
      EXPECT_NE(WhyBad(spec, DType::kF32, bad), nullptr) << NameOf(rule);
      bad.*number = -0.5;
      EXPECT_NE(WhyBad(spec, DType::kF32, bad), nullptr) << NameOf(rule);
    }
    GroupNumbers bad = own;
    bad.eps = -1;
    EXPECT_NE(WhyBad(spec, DType::kF32, bad), nullptr) << NameOf(rule);
    bad = own;
    bad.reserved = 1;
    EXPECT_NE(WhyBad(spec, DType::kF32, bad), nullptr) << NameOf(rule);
  }

  spec.rule = OptimizerRule::kSgd;
  GroupNumbers still = NumbersOf(spec, 0.1F, 0);
  still.beta1 = 0;
  EXPECT_NE(WhyBad(spec, DType::kF32, still), nullptr) << "the job has a plane of momentum";
}

}  // namespace step_numbers_test
}  // namespace tidepool::shm
