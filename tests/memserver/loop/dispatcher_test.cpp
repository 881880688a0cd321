// Hostile and wrong requests: each ends its own session with a named reason, and touches nothing
// else.
#include "memserver/loop/dispatcher.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <sys/mman.h>

#include <gtest/gtest.h>
#include "memserver/traffic/request_check.h"
#include "shm/step_numbers.h"
#include "tests/fakes/small_trainer.h"

namespace tidepool::memserver {
namespace dispatcher_test {

using shm::Op;
using shm::Request;

constexpr uint64_t kShard = 96;  // of the first chunk, two ranks
constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();

// Two ranks with weights, at version 0; beside them a second job that must not notice anything.
class Hostile : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(victim_.JoinAll());
    victim_.PutWeights(1);
    victim_.Step({.seed = 1});
    ASSERT_TRUE(attacked_.JoinAll());
    attacked_.PutWeights(2);
    attacker_ = &attacked_.rank(0);
  }

  // The attacker's session has ended with a text that holds `reason`; the victim goes on with the
  // right numbers.
  void ExpectExpelled(const std::string& reason) {
    world_.Settle();
    EXPECT_EQ(attacker_->Ended(), ErrorId::kProtocolViolation);
    const auto over = world_.TakeReply<SessionOver>();
    ASSERT_TRUE(over);
    EXPECT_EQ(over->connection, attacker_->connection());
    EXPECT_EQ(over->why.id(), ErrorId::kProtocolViolation);
    EXPECT_NE(over->why.what().find(reason), std::string::npos) << over->why.what();
    EXPECT_EQ(attacked_.rank(1).Ended(), std::nullopt);
    victim_.Step({.seed = 2});
    EXPECT_EQ(victim_.Compare(2e-6), "");
  }

  ServeWorld world_;
  SmallTrainer victim_{&world_, MakeSpec({.name = "victim"})};
  SmallTrainer attacked_{&world_, MakeSpec({.name = "attacked", .world = 2, .micro_batches = 2})};
  FakeRank* attacker_ = nullptr;
};

Request Fetch(ChunkId chunk, uint64_t begin, uint64_t count, uint64_t offset) {
  Request request{};
  request.op = static_cast<uint32_t>(Op::kFetch);
  request.chunk = chunk;
  request.element_begin = begin;
  request.element_count = count;
  request.rcache_offset = offset;
  return request;
}

Request Gradient(uint64_t begin, uint64_t count, uint32_t micro_batch) {
  Request request = Fetch(0, begin, count, 0);
  request.op = static_cast<uint32_t>(Op::kSubmitGradient);
  request.micro_batch = micro_batch;
  return request;
}

GroupNumbers Numbers(float learning_rate = 0.1F, float weight_decay = 0, double beta1 = 0.9) {
  OptimizerSpec spec;
  spec.beta1 = beta1;
  return NumbersOf(spec, learning_rate, weight_decay);
}

// The job that is attacked has four parameters.
Request Untouched(uint32_t first, uint32_t run, uint64_t bits) {
  shm::UntouchedRequest request{};
  request.op = static_cast<uint32_t>(Op::kUntouched);
  request.first = first;
  request.run = run;
  request.bits[0] = bits;
  return std::bit_cast<Request>(request);
}

Request Put(uint64_t begin, uint64_t count) {
  Request request = Fetch(0, begin, count, 0);
  request.op = static_cast<uint32_t>(Op::kPutWeights);
  return request;
}

Request With(Request request, const std::function<void(Request*)>& change) {
  change(&request);
  return request;
}

struct BadRequest {
  const char* name;
  Request request;
  const char* reason;
};

class HostileRequest : public Hostile, public ::testing::WithParamInterface<BadRequest> {};

TEST_P(HostileRequest, EndsTheSessionWithItsReason) {
  attacker_->Send(GetParam().request);
  ExpectExpelled(GetParam().reason);
}

const BadRequest kBadRequests[] = {
    {"OpZero", With(Fetch(0, 0, 1, 0), [](Request* r) { r->op = 0; }), "operation is unknown"},
    {"OpTen", With(Fetch(0, 0, 1, 0), [](Request* r) { r->op = 10; }), "operation is unknown"},
    {"ClaimOfATrainedChunk", With(Fetch(0, 0, 1, 0), [](Request* r) { r->op = 5; }), "not frozen"},
    {"OpHuge", With(Fetch(0, 0, 1, 0), [](Request* r) { r->op = 0xffffffff; }),
     "operation is unknown"},
    {"Reserved", With(Fetch(0, 0, 1, 0), [](Request* r) { r->flags = 2; }), "reserved"},
    {"AttemptOfAFetch",
     With(Fetch(0, 0, 1, 0), [](Request* r) { r->flags = shm::FlagsOfAttempt(0); }), "reserved"},
    {"AttemptWithoutItsMark", With(Gradient(0, kShard, 0), [](Request* r) { r->flags = 1 << 8; }),
     "reserved"},
    {"AttemptToCome",
     With(Gradient(0, kShard, 0), [](Request* r) { r->flags = shm::FlagsOfAttempt(1); }),
     "another attempt"},
    {"AttemptToComeAgain",
     With(Gradient(0, kShard, 0), [](Request* r) { r->flags = shm::FlagsOfAttempt(1) | 1; }),
     "another attempt"},
    {"AttemptThatIsOver",
     With(Gradient(0, kShard, 0), [](Request* r) { r->flags = shm::FlagsOfAttempt(~0U); }),
     "another attempt"},
    {"FlagBesideTheAttempt",
     With(Gradient(0, kShard, 0), [](Request* r) { r->flags = shm::FlagsOfAttempt(0) | 8; }),
     "reserved"},
    {"ChunkPastEnd", Fetch(2, 0, 1, 0), "no such chunk"},
    {"ChunkHuge", Fetch(0xffffffff, 0, 1, 0), "no such chunk"},
    {"EmptyRange", Fetch(0, 0, 0, 0), "empty"},
    {"CountTooLarge", Fetch(0, 0, 193, 0), "inside the chunk"},
    {"BeginTooLarge", Fetch(0, 193, 1, 0), "inside the chunk"},
    {"BeginHuge", Fetch(0, kHuge, 1, 0), "inside the chunk"},
    {"CountHuge", Fetch(0, 1, kHuge, 0), "inside the chunk"},
    {"SumWraps", Fetch(0, 16, kHuge - 15, 0), "inside the chunk"},
    {"OffsetHuge", Fetch(0, 0, 1, kHuge - 3), "inside the rCache"},
    {"OffsetAtEnd", Fetch(0, 0, 1, 64 * kKiB), "inside the rCache"},
    {"OffsetOneTooFar", Fetch(0, 0, 192, 64 * kKiB - 192 * 4 + 4), "inside the rCache"},
    {"OffsetUnaligned", Fetch(0, 0, 1, 2), "aligned"},
    {"MicroBatchOfFetch", With(Fetch(0, 0, 1, 0), [](Request* r) { r->micro_batch = 1; }),
     "how soon"},
    {"FetchTwoAhead", With(Fetch(0, 0, 1, 0), [](Request* r) { r->version = 2; }),
     "one step ahead"},
    {"FetchFarAhead", With(Fetch(0, 0, 1, 0), [](Request* r) { r->version = kHuge; }),
     "one step ahead"},
    {"PutAfterReady", Put(0, kShard), "has its weights"},
    {"GradientShort", Gradient(0, kShard - 1, 0), "exactly the rank's shard"},
    {"GradientOfOtherShard", Gradient(kShard, kShard, 0), "exactly the rank's shard"},
    {"GradientWholeChunk", Gradient(0, 2 * kShard, 0), "exactly the rank's shard"},
    {"GradientSecondFirst", Gradient(0, kShard, 1), "out of order"},
    {"GradientNoSuchBatch", Gradient(0, kShard, 2), "no such micro-batch"},
    {"NumbersOfNoGroup", shm::GroupNumbersRequestOf(2, Numbers(), 0), "no such parameter group"},
    {"NumbersOfNextVersion", shm::GroupNumbersRequestOf(0, Numbers(), 1), "not the open one"},
    {"NumbersOfAnAttemptToCome",
     With(shm::GroupNumbersRequestOf(0, Numbers(), 0),
          [](Request* r) { r->flags = shm::FlagsOfAttempt(1); }),
     "not the open one"},
    {"RateThatIsNoNumber", shm::GroupNumbersRequestOf(0, Numbers(std::nanf("")), 0),
     "learning rate must be finite"},
    {"DecayBelowZero", shm::GroupNumbersRequestOf(0, Numbers(0.1F, -1), 0),
     "weight decay must be finite"},
    {"BetaOfOne", shm::GroupNumbersRequestOf(0, Numbers(0.1F, 0, 1), 0), "beta1 and beta2"},
    {"UntouchedRunPastEnd", Untouched(3, 2, 0), "no such parameter"},
    {"UntouchedBitPastEnd", Untouched(0, 3, 2), "no such parameter"},
    {"UntouchedHuge", Untouched(0xffffffff, 0xffffffff, 0), "no such parameter"},
    {"FactsOfTooManyTokens", shm::StepFactsRequestOf({.tokens = kHuge}, 0), "more tokens"},
    {"FactsOfNextVersion", shm::StepFactsRequestOf({}, 1), "not the open one"},
    {"FactsWithAReservedField",
     With(shm::StepFactsRequestOf({}, 0), [](Request* r) { r->element_count = 1; }),
     "a reserved field is set"},
    {"GradientOfNextVersion", With(Gradient(0, kShard, 0), [](Request* r) { r->version = 1; }),
     "another version"},
};
INSTANTIATE_TEST_SUITE_P(All, HostileRequest, ::testing::ValuesIn(kBadRequests),
                         [](const ::testing::TestParamInfo<BadRequest>& row) {
                           return row.param.name;
                         });

Request EndOf(Version version, uint32_t flags) {
  Request request = FakeRank::EndStepRequestOf(version, 0.01F, 1);
  request.flags = flags;
  return request;
}

TEST_F(Hostile, AnEndOfAnAttemptThatHasNotBegun) {
  attacked_.Submit({.seed = 1});
  attacker_->Send(EndOf(0, shm::FlagsOfAttempt(1) | shm::kResubmitted));
  ExpectExpelled("attempt");
}

TEST_F(Hostile, ANewEndOfAnAttemptThatIsOver) {
  attacked_.Submit({.seed = 1});
  attacker_->Send(EndOf(0, shm::FlagsOfAttempt(shm::kAttemptMask)));
  ExpectExpelled("attempt");
}

// Whatever a rank says of attempts that are over, its peer's step takes nothing from it.
TEST_F(Hostile, RequestsOfAttemptsThatNeverWereChangeNothing) {
  const uint32_t never = shm::FlagsOfAttempt(shm::kAttemptMask - 2) | shm::kResubmitted;
  const auto gradient = With(Gradient(0, kShard, 1), [never](Request* r) { r->flags = never; });
  EXPECT_EQ(world_.Await(attacker_, attacker_->Send(gradient)).error, 0U);
  EXPECT_EQ(world_.Await(attacker_, attacker_->Send(EndOf(0, never))).error,
            static_cast<uint32_t>(ErrorId::kNonFinite));
  const Job& job = *world_.tables().FindJob("attacked");
  EXPECT_EQ(job.states->intake(0, 0).micro_batches_accepted, 0U);
  EXPECT_FALSE(job.step.HasEnded(0));
  EXPECT_EQ(attacked_.Step({.seed = 1}).version, 1U);
  EXPECT_EQ(attacked_.Compare(2e-6), "");
}

TEST_F(Hostile, NumbersOfAGroupComeOnce) {
  attacker_->Send(shm::GroupNumbersRequestOf(0, Numbers(), 0));
  attacker_->Send(shm::GroupNumbersRequestOf(0, Numbers(), 0));
  ExpectExpelled("twice");
}

TEST_F(Hostile, NumbersBehindTheEndOfTheStep) {
  attacked_.Submit({.seed = 1});
  attacker_->Send(EndOf(0, 0));
  attacker_->Send(Untouched(0, 1, 0));
  ExpectExpelled("after the rank had ended");
}

TEST_F(Hostile, MoreThanThereIsToSay) {
  for (uint32_t i = 0; i <= shm::kNumbersRequestsMax; ++i) attacker_->Send(Untouched(0, 1, 0));
  ExpectExpelled("more of a step than");
}

// Both end with the reason: nobody knows which of them is wrong.
TEST_F(Hostile, RanksThatNameOtherNumbers) {
  attacked_.Submit({.seed = 1});
  attacker_->Send(shm::GroupNumbersRequestOf(0, Numbers(0.25F), 0));
  attacker_->Send(EndOf(0, 0));
  attacked_.rank(1).Send(EndOf(0, 0));
  world_.Settle();
  for (Rank rank = 0; rank < 2; ++rank)
    EXPECT_EQ(attacked_.rank(rank).Ended(), ErrorId::kProtocolViolation);
  EXPECT_NE(world_.TakeReply<SessionOver>()->why.what().find("different numbers"),
            std::string::npos);
}

TEST(Flags, OfAttemptsAreReservedInEarlierVersions) {
  const Request gradient = With(Gradient(0, kShard, 0), [](Request* r) {
    r->flags = shm::FlagsOfAttempt(7) | shm::kResubmitted;
  });
  EXPECT_EQ(CheckFlags(gradient, shm::kAbiAttempt), nullptr);
  EXPECT_NE(CheckFlags(gradient, shm::kAbiAttempt - 1), nullptr);
  EXPECT_EQ(CheckFlags(EndOf(0, shm::kResubmitted), shm::kAbiVersionBefore), nullptr);
}

TEST(Flags, ZerosAreOfGradientsAndOfLaterVersionsAlone) {
  const Request gradient = With(Gradient(0, kShard, 0), [](Request* r) { r->flags = shm::kZeros; });
  EXPECT_EQ(CheckFlags(gradient, shm::kAbiZeros), nullptr);
  EXPECT_NE(CheckFlags(gradient, shm::kAbiZeros - 1), nullptr);
  const Request fetch = With(Fetch(0, 0, 1, 0), [](Request* r) { r->flags = shm::kZeros; });
  EXPECT_NE(CheckFlags(fetch, shm::kAbiZeros), nullptr);
}

TEST_F(Hostile, ACounterThatSkips) {
  Request request = Fetch(0, 0, 1, 0);
  request.counter = 1000000;
  ASSERT_TRUE(attacker_->port().Push(request));
  ExpectExpelled("counter");
}

TEST_F(Hostile, AnOverwrittenVersion) {
  attacked_.Step({.seed = 1});
  attacker_->Fetch(0, 0, 1, 0, 0);
  ExpectExpelled("already overwritten");
}

TEST_F(Hostile, AMicroBatchTwice) {
  world_.Await(attacker_, attacker_->Submit({0, 0, kShard, 0, 0, 0}));
  attacker_->Submit({0, 0, kShard, 0, 0, 0});
  ExpectExpelled("out of order");
}

TEST_F(Hostile, AStepThatEndsWithoutItsGradients) {
  attacker_->EndStep(0, 0.1F);
  ExpectExpelled("before all gradients");
}

TEST_F(Hostile, AStepThatEndsTwice) {
  attacked_.Submit({.seed = 1});
  attacker_->EndStep(0, 0.1F);
  attacker_->EndStep(0, 0.1F);
  ExpectExpelled("ended this step already");
}

TEST_F(Hostile, AGradientAfterTheEndOfItsStep) {
  attacked_.Submit({.seed = 1});
  attacker_->EndStep(0, 0.1F);
  attacker_->Submit({0, 0, kShard, 0, 0, 0});
  ExpectExpelled("after the rank had ended the step");
}

struct BadEnd {
  const char* name;
  float learning_rate;
  float loss_scale;
  Version version;
  const char* reason;
};
class HostileEnd : public Hostile, public ::testing::WithParamInterface<BadEnd> {};

TEST_P(HostileEnd, EndsTheSessionWithItsReason) {
  attacked_.Submit({.seed = 1});
  attacker_->EndStep(GetParam().version, GetParam().learning_rate, GetParam().loss_scale);
  ExpectExpelled(GetParam().reason);
}

const BadEnd kBadEnds[] = {
    {"NextVersion", 0.1F, 1, 1, "not the open one"},
};
INSTANTIATE_TEST_SUITE_P(All, HostileEnd, ::testing::ValuesIn(kBadEnds),
                         [](const ::testing::TestParamInfo<BadEnd>& row) {
                           return row.param.name;
                         });

// A user may have chosen them: the session goes on, and a sound end of the same step is taken.
TEST(StepValues, WithWhichNothingCanBeUpdatedAreRefusedAndTheStepStaysOpen) {
  ServeWorld world;
  SmallTrainer trainer(&world, MakeSpec({}));
  ASSERT_TRUE(trainer.JoinAll());
  trainer.PutWeights(1);
  const StepPlan plan{.seed = 1};
  trainer.Submit(plan);
  const float nan = std::nanf("");
  for (const auto& [rate, scale] : std::vector<std::pair<float, float>>{{-0.1F, 1},
                                                                        {HUGE_VALF, 1},
                                                                        {nan, 1},
                                                                        {0.1F, 0},
                                                                        {0.1F, -1},
                                                                        {0.1F, nan},
                                                                        {0.1F, HUGE_VALF}}) {
    SCOPED_TRACE(std::to_string(rate) + " " + std::to_string(scale));
    const uint64_t end = trainer.rank(0).EndStep(0, rate, scale);
    EXPECT_EQ(world.Await(&trainer.rank(0), end).error,
              static_cast<uint32_t>(ErrorId::kConfigBadValue));
  }
  const shm::Completion sealed = trainer.EndStep(plan);
  EXPECT_EQ(sealed.error, 0U);
  EXPECT_EQ(sealed.version, 1U);
}

TEST_F(Hostile, RanksThatDisagreeAboutTheStepAllEnd) {
  attacked_.Submit({.seed = 1});
  attacked_.rank(0).EndStep(0, 0.1F);
  attacked_.rank(1).EndStep(0, 0.2F);
  world_.Settle();
  EXPECT_EQ(attacked_.rank(0).Ended(), ErrorId::kProtocolViolation);
  EXPECT_EQ(attacked_.rank(1).Ended(), ErrorId::kProtocolViolation);
  EXPECT_NE(world_.TakeReply<SessionOver>()->why.what().find("different learning rates"),
            std::string::npos);
  EXPECT_EQ(victim_.Compare(2e-6), "");
}

TEST_F(Hostile, AnswersThatAreNeverTaken) {
  // A ring full of requests, all answered; then more requests while the client says it has consumed
  // none of the answers.
  for (uint64_t i = 0; i < shm::kRingEntries; ++i) attacker_->Fetch(0, 0, 1, 0, 0);
  world_.Settle();
  EXPECT_EQ(attacker_->Ended(), std::nullopt);
  attacker_->Fetch(0, 0, 1, 0, 0);
  ExpectExpelled("not taken");
}

TEST_F(Hostile, MoreParkedRequestsThanTheRingHolds) {
  // The next version: parked.
  for (uint64_t i = 0; i < shm::kRingEntries; ++i) attacker_->Fetch(0, 0, 1, 0, 1);
  world_.Settle();
  EXPECT_EQ(attacker_->Ended(), std::nullopt);
  attacker_->Fetch(0, 0, 1, 0, 1);
  ExpectExpelled("unanswered");
}

TEST(PutOrder, AGapAnOverlapAndAForeignShardAreRefused) {
  struct Row {
    uint64_t begin, count;
    const char* reason;
  };
  for (const Row& row : {Row{40, 8, "in order"}, Row{16, 16, "in order"},
                         Row{32, 65, "inside the rank's shard"}, Row{96, 16, "in order"}}) {
    ServeWorld world;
    SmallTrainer trainer(&world, MakeSpec({.world = 2}));
    ASSERT_TRUE(trainer.JoinAll());
    world.Await(&trainer.rank(0), trainer.rank(0).Put(0, 0, 32, 0));
    trainer.rank(0).Put(0, row.begin, row.count, 0);
    world.Settle();
    EXPECT_EQ(trainer.rank(0).Ended(), ErrorId::kProtocolViolation);
    const auto over = world.TakeReply<SessionOver>();
    ASSERT_TRUE(over);
    EXPECT_NE(over->why.what().find(row.reason), std::string::npos) << over->why.what();
  }
}

TEST(BeforeWeights, GradientsAndStepsAreRefusedAndFetchesWait) {
  ServeWorld world;
  SmallTrainer trainer(&world, MakeSpec({}));
  ASSERT_TRUE(trainer.JoinAll());
  const uint64_t waiting = trainer.rank(0).Fetch(1, 0, 192, 4096, 0);
  world.Settle();
  EXPECT_EQ(trainer.rank(0).Take(), std::nullopt);
  world.Await(&trainer.rank(0), trainer.rank(0).Put(0, 0, 192, 0));
  const uint64_t put = trainer.rank(0).Put(1, 0, 192, 0);
  EXPECT_EQ(world.Await(&trainer.rank(0), put).error, 0u);
  EXPECT_EQ(world.Await(&trainer.rank(0), waiting).error, 0u);

  ServeWorld other_world;
  SmallTrainer early(&other_world, MakeSpec({}));
  ASSERT_TRUE(early.JoinAll());
  early.rank(0).Submit({0, 0, 192, 0, 0, 0});
  other_world.Settle();
  EXPECT_EQ(early.rank(0).Ended(), ErrorId::kProtocolViolation);
}

}  // namespace dispatcher_test
}  // namespace tidepool::memserver
