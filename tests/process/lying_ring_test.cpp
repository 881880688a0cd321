// A client that lies in its ring: every lie ends its session with a named reason; the daemon and
// the honest job beside it notice nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/random.h"
#include "tests/process/rig/daemon_fixture.h"
#include "tests/process/rig/lying_client.h"
#include "tests/process/rig/memserver_process.h"

namespace tidepool::testing {
namespace lying_ring_test {

using shm::Op;
using shm::Request;

constexpr int64_t kLimit = 20 * kNsPerSecond;

shm::JobSpec LiarSpec() {
  ThinOptions options;
  options.name = "liar";
  options.world = 2;
  return SpecOf(options);
}

// One server for all lies, with an honest job that is checked after each.
class LyingRing : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = std::make_unique<MemserverProcess>();
    expected_ = HonestOutput();
  }
  static void TearDownTestSuite() {
    EXPECT_TRUE(server_->StopsCleanly()) << server_->process().Output();
    server_.reset();
  }
  static std::string HonestOutput() {
    ChildProcess honest(ThinCommand(server_->socket_dir(), {"--name", "honest"}));
    const auto end = honest.Wait(kLimit);
    return end && end->exit_code == 0 ? honest.Output() : "failed: " + honest.Output();
  }

  void SetUp() override { ASSERT_NE(expected_.find("hash"), std::string::npos) << expected_; }
  void TearDown() override {
    liar_.reset();
    other_.reset();
    EXPECT_EQ(HonestOutput(), expected_);
    EXPECT_EQ(WaitForHoldings(server_->socket_dir(), kNothing, kLimit), kNothing);
  }

  // Both ranks attached; weights are in when `loaded`.
  void AttachBoth(bool loaded) {
    auto liar = LyingClient::Attach(server_->socket_dir(), spec_, 0);
    auto other = LyingClient::Attach(server_->socket_dir(), spec_, 1);
    ASSERT_TRUE(liar.ok()) << liar.status().Format();
    ASSERT_TRUE(other.ok()) << other.status().Format();
    liar_ = std::move(liar).value();
    other_ = std::move(other).value();
    if (!loaded) return;
    ASSERT_TRUE(liar_->PutAllWeights(spec_, 0).ok());
    ASSERT_TRUE(other_->PutAllWeights(spec_, 1).ok());
  }

  void ExpectEnded(const std::string& reason) {
    const Status end = liar_->AwaitEnd();
    EXPECT_EQ(end.id(), ErrorId::kProtocolViolation) << end.Format();
    EXPECT_NE(end.what().find(reason), std::string::npos) << end.Format();
  }

  static std::unique_ptr<MemserverProcess> server_;
  static std::string expected_;
  const shm::JobSpec spec_ = LiarSpec();
  std::unique_ptr<LyingClient> liar_, other_;
};

std::unique_ptr<MemserverProcess> LyingRing::server_;
std::string LyingRing::expected_;

// --- lies in one request ---

struct Lie {
  const char* name;
  Op op;
  std::function<void(Request*)> change;  // of a sound request
  const char* reason;
  bool before_weights = false;
};

Request SoundRequest(Op op) {
  Request request{};
  request.op = static_cast<uint32_t>(op);
  request.element_count = 2048;  // rank 0's half of a chunk of 4096
  return request;
}

class LyingRequest : public LyingRing, public ::testing::WithParamInterface<Lie> {};

TEST_P(LyingRequest, EndsTheSessionByName) {
  AttachBoth(!GetParam().before_weights);
  if (HasFatalFailure()) return;
  Request request = SoundRequest(GetParam().op);
  GetParam().change(&request);
  liar_->Submit(request);
  ExpectEnded(GetParam().reason);
}

constexpr uint64_t kHuge = ~uint64_t{0};

INSTANTIATE_TEST_SUITE_P(
    EveryField, LyingRequest,
    ::testing::Values(
        Lie{"OperationZero", Op::kFetch, [](Request* r) { r->op = 0; }, "operation"},
        Lie{"OperationUnknown", Op::kFetch, [](Request* r) { r->op = shm::kOpMax + 1; },
            "operation"},
        Lie{"OperationHuge", Op::kFetch, [](Request* r) { r->op = ~0U; }, "operation"},
        Lie{"CounterRepeats", Op::kFetch, [](Request* r) { r->counter = 1; }, "counter"},
        Lie{"CounterJumps", Op::kFetch, [](Request* r) { r->counter = 1000; }, "counter"},
        Lie{"CounterHuge", Op::kFetch, [](Request* r) { r->counter = kHuge; }, "counter"},
        Lie{"ChunkUnknown", Op::kFetch, [](Request* r) { r->chunk = 4; }, "no such chunk"},
        Lie{"ChunkHuge", Op::kSubmitGradient, [](Request* r) { r->chunk = ~0U; }, "no such chunk"},
        Lie{"RangeEmpty", Op::kFetch, [](Request* r) { r->element_count = 0; }, "empty"},
        Lie{"RangeBehindChunk", Op::kFetch, [](Request* r) { r->element_begin = 4096; },
            "inside the chunk"},
        Lie{"RangeTooLong", Op::kFetch, [](Request* r) { r->element_count = 4097; },
            "inside the chunk"},
        Lie{"RangeOverflows", Op::kFetch,
            [](Request* r) { r->element_begin = 16, r->element_count = kHuge - 8; },
            "inside the chunk"},
        Lie{"OffsetBehindRcache", Op::kFetch, [](Request* r) { r->rcache_offset = 1 << 20; },
            "inside the rCache"},
        Lie{"OffsetLeavesTooLittle", Op::kFetch, [](Request* r) { r->rcache_offset = 32768 - 4; },
            "inside the rCache"},
        Lie{"OffsetHuge", Op::kFetch, [](Request* r) { r->rcache_offset = kHuge - 3; },
            "inside the rCache"},
        Lie{"OffsetOdd", Op::kFetch, [](Request* r) { r->rcache_offset = 2; }, "aligned"},
        Lie{"VersionFarAhead", Op::kFetch, [](Request* r) { r->version = 2; }, "ahead"},
        Lie{"VersionHuge", Op::kFetch, [](Request* r) { r->version = kHuge; }, ""},
        Lie{"ReservedSet", Op::kFetch, [](Request* r) { r->flags = 2; }, "reserved"},
        Lie{"MicroBatchOfFetch", Op::kFetch, [](Request* r) { r->micro_batch = 1; }, "how soon"},
        Lie{"WeightsTwice", Op::kPutWeights, [](Request*) {}, "weights already"},
        Lie{"GradientOfOthersShard", Op::kSubmitGradient,
            [](Request* r) { r->element_begin = 2048; }, "exactly the rank's shard"},
        Lie{"GradientOfPart", Op::kSubmitGradient, [](Request* r) { r->element_count = 1024; },
            "exactly the rank's shard"},
        Lie{"GradientOfNextStep", Op::kSubmitGradient, [](Request* r) { r->version = 1; },
            "another version"},
        Lie{"GradientOfAttemptToCome", Op::kSubmitGradient,
            [](Request* r) { r->flags = shm::FlagsOfAttempt(1); }, "another attempt"},
        Lie{"GradientOfWildAttempt", Op::kSubmitGradient,
            [](Request* r) { r->flags = shm::FlagsOfAttempt(0x800000); }, "another attempt"},
        Lie{"AttemptOfFetch", Op::kFetch, [](Request* r) { r->flags = shm::FlagsOfAttempt(0); },
            "reserved"},
        Lie{"AttemptUnmarked", Op::kSubmitGradient,
            [](Request* r) { r->flags = ~0U << shm::kAttemptShift; }, "reserved"},
        Lie{"GradientOfUnknownMicroBatch", Op::kSubmitGradient,
            [](Request* r) { r->micro_batch = 1; }, "micro-batch"},
        Lie{"GradientBeforeWeights", Op::kSubmitGradient, [](Request*) {}, "before the weights",
            true},
        Lie{"WeightsOfOthersShard", Op::kPutWeights, [](Request* r) { r->element_begin = 2048; },
            "in order", true},
        Lie{"WeightsBeyondShard", Op::kPutWeights, [](Request* r) { r->element_count = 4096; },
            "shard", true},
        Lie{"WeightsNotFromStart", Op::kPutWeights,
            [](Request* r) { r->element_begin = 16, r->element_count = 16; }, "in order", true},
        Lie{"WeightsWithVersion", Op::kPutWeights, [](Request* r) { r->version = 1; }, "version",
            true}),
    [](const auto& tested) { return tested.param.name; });

// --- lies in the end of a step ---

class LyingEndStep : public LyingRing {
 protected:
  void Try(const std::function<void(shm::EndStepRequest*)>& change, const std::string& reason) {
    AttachBoth(true);
    if (HasFatalFailure()) return;
    shm::EndStepRequest end{};
    end.op = static_cast<uint32_t>(Op::kEndStep);
    end.learning_rate = 0.1F;
    end.loss_scale = 1;
    change(&end);
    liar_->Submit(shm::AsRequest(end));
    ExpectEnded(reason);
  }
};

// Numbers that a user may have chosen: no lie about the ring. The step stays open, and the session
// goes on to the next lie.
TEST_F(LyingEndStep, WithNumbersThatUpdateNothing) {
  AttachBoth(true);
  if (HasFatalFailure()) return;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(),
                  kInfinite = std::numeric_limits<float>::infinity();
  for (const auto& [rate, scale] :
       {std::pair{kNan, 1.0F}, {-1.0F, 1.0F}, {kInfinite, 1.0F}, {0.1F, 0.0F}, {0.1F, kInfinite}}) {
    shm::EndStepRequest end{};
    end.op = static_cast<uint32_t>(Op::kEndStep);
    end.learning_rate = rate;
    end.loss_scale = scale;
    liar_->Submit(shm::AsRequest(end));
    shm::Completion answer{};
    ASSERT_TRUE(liar_->Await(&answer, 5 * kNsPerSecond));
    EXPECT_EQ(answer.error, static_cast<uint32_t>(ErrorId::kConfigBadValue));
  }
  liar_->Submit(SoundRequest(static_cast<Op>(shm::kOpMax + 1)));
  ExpectEnded("operation");
}
TEST_F(LyingEndStep, OfAnotherVersion) {
  Try([](auto* end) { end->version = 7; }, "not the open one");
}
TEST_F(LyingEndStep, OfAFlagThatNobodyKnows) {
  Try([](auto* end) { end->flags = ~0U; }, "reserved");
}
TEST_F(LyingEndStep, WithoutItsGradients) {
  Try([](auto*) {}, "before all gradients");
}

// --- lies in the ring itself ---

TEST_F(LyingRing, AWildSequenceEndsTheSession) {
  for (const uint64_t lie : {uint64_t{2}, uint64_t{1} << 40, kHuge}) {
    AttachBoth(false);
    liar_->slot(0)->sequence.store(lie);
    liar_->Ring();
    ExpectEnded("ring");
    liar_.reset();
    other_.reset();
    ASSERT_EQ(WaitForHoldings(server_->socket_dir(), kNothing, kLimit), kNothing);
  }
}

TEST_F(LyingRing, AWildCursorEndsTheSession) {
  AttachBoth(false);
  liar_->header()->completions_consumed.store(uint64_t{1} << 63);
  liar_->Ring();
  ExpectEnded("ring");
}

TEST_F(LyingRing, AClientThatNeverTakesItsAnswersIsEnded) {
  AttachBoth(true);
  // Answers are never marked as taken: the ring of answers fills, and one request more ends the
  // session.
  for (uint64_t i = 0; i < 3 * shm::kRingEntries; ++i) {
    Request request = SoundRequest(Op::kFetch);
    request.element_count = 16;
    liar_->Submit(request);
  }
  const Status end = liar_->AwaitEnd();
  EXPECT_EQ(end.id(), ErrorId::kProtocolViolation) << end.Format();
}

TEST_F(LyingRing, AHeaderFullOfNoiseHurtsNobody) {
  AttachBoth(true);
  SplitMix64 random(3);
  auto* words = reinterpret_cast<std::atomic<uint64_t>*>(liar_->header());
  for (size_t i = 0; i < shm::kRingOffset / 8; ++i) words[i].store(random.Next() | 1);
  liar_->Ring();
  EXPECT_EQ(liar_->AwaitEnd().id(), ErrorId::kProtocolViolation);
}

TEST_F(LyingRing, RandomRequestsNeverTouchTheHonestJob) {
  SplitMix64 random(11);
  for (int round = 0; round < 200; ++round) {
    auto liar = LyingClient::Attach(server_->socket_dir(), spec_, 0);
    ASSERT_TRUE(liar.ok()) << round << ": " << liar.status().Format();
    for (int i = 0; i < 20; ++i) {
      Request request = SoundRequest(static_cast<Op>(1 + random.Below(4)));
      auto* words = reinterpret_cast<uint64_t*>(&request);
      const uint64_t at = random.Below(shm::kPayloadWords);
      words[at] =
          random.Below(3) == 0 ? random.Next() : words[at] ^ (uint64_t{1} << random.Below(64));
      (*liar)->Submit(request);
    }
    shm::Completion completion{};
    (*liar)->Await(&completion, kNsPerMs);
    liar->reset();
    ASSERT_EQ(WaitForHoldings(server_->socket_dir(), kNothing, kLimit), kNothing);
  }
}

// --- gradients that change while they are used ---

// A thread of the liar that never stops to write where its gradient lies: one of two numbers while
// the server takes it, and what is no number from when it says that it has it.
class Scribbler {
 public:
  Scribbler(std::byte* words, size_t count)
      : words_(reinterpret_cast<float*>(words), count), thread_([this] { Scribble(); }) {}
  ~Scribbler() { Stop(); }
  Scribbler(const Scribbler&) = delete;
  Scribbler& operator=(const Scribbler&) = delete;
  void WriteNumbers() { Enter(kNumbers); }
  void WriteNoNumbers() { Enter(kNoNumbers); }
  void Stop() {
    phase_ = kEnd;
    if (thread_.joinable()) thread_.join();
  }

 private:
  enum Phase { kNumbers, kNoNumbers, kEnd };
  // Returns when each word has been written so once. The round that is counted from may have begun
  // in the phase before, so it is read behind the new phase, and two rounds have to end.
  void Enter(Phase phase) {
    phase_ = phase;
    const uint64_t from = rounds_;
    while (rounds_ < from + 2) std::this_thread::yield();
  }
  void Scribble() {
    while (phase_ != kEnd) {
      const float value = phase_ == kNoNumbers ? std::numeric_limits<float>::quiet_NaN()
                          : rounds_ % 2 == 0   ? 1.0F
                                               : 2.0F;
      for (float& word : words_)
        std::atomic_ref<float>(word).store(value, std::memory_order_relaxed);
      ++rounds_;
    }
  }
  const std::span<float> words_;
  std::atomic<int> phase_{kNumbers};
  std::atomic<uint64_t> rounds_{0};
  std::thread thread_;
};

TEST_F(LyingRing, AGradientThatChangesWhileItIsUsedIsUsedAsItWasTaken) {
  ThinOptions options;
  options.name = "scribbler";
  options.optimizer.rule = OptimizerRule::kSgd;
  shm::JobSpec spec = SpecOf(options);
  spec.max_grad_norm = 0;
  for (shm::ParameterGroup& group : spec.parameter_groups)
    group = {.lr_scale = 1, .weight_decay = 0};
  auto attached = LyingClient::Attach(server_->socket_dir(), spec);
  ASSERT_TRUE(attached.ok()) << attached.status().Format();
  liar_ = std::move(attached).value();
  constexpr size_t kElements = 4096;
  const std::span<float> words(reinterpret_cast<float*>(liar_->rcache()), kElements);
  std::fill(words.begin(), words.end(), 3.0F);
  ASSERT_TRUE(liar_->PutAllWeights(spec).ok());
  const auto ask = [&](Request request) {
    liar_->Submit(request);
    shm::Completion completion{};
    return liar_->Await(&completion, kLimit) ? completion.error : ~0U;
  };
  Request request{};
  request.element_count = kElements;
  Scribbler scribbler(liar_->rcache(), kElements);
  for (uint64_t step = 0; step < 20; ++step) {
    scribbler.WriteNumbers();
    request.version = step;
    request.op = static_cast<uint32_t>(Op::kSubmitGradient);
    for (request.chunk = 0; request.chunk < spec.chunks.size(); ++request.chunk)
      ASSERT_EQ(ask(request), 0U);
    scribbler.WriteNoNumbers();
    shm::EndStepRequest end{};
    end.op = static_cast<uint32_t>(Op::kEndStep);
    end.version = step;
    end.learning_rate = 0.5F;
    end.loss_scale = 1;
    ASSERT_EQ(ask(shm::AsRequest(end)), 0U);
    // A fetch waits for the update, which goes on while the thread writes; what it brings is
    // written over.
    request.version = step + 1;
    request.op = static_cast<uint32_t>(Op::kFetch);
    for (request.chunk = 0; request.chunk < spec.chunks.size(); ++request.chunk)
      ASSERT_EQ(ask(request), 0U);
  }
  scribbler.Stop();
  for (request.chunk = 0; request.chunk < spec.chunks.size(); ++request.chunk) {
    ASSERT_EQ(ask(request), 0U);
    // 20 steps of 0.5 or 1: whole halves between 3 - 20 and 3 - 10.
    for (const float weight : words)
      ASSERT_TRUE(weight >= -17 && weight <= -7 && weight * 2 == std::floor(weight * 2)) << weight;
  }
}

TEST_F(LyingRing, TheOtherRankOfALiarIsTold) {
  AttachBoth(true);
  Request request = SoundRequest(Op::kFetch);
  request.op = 99;
  liar_->Submit(request);
  auto told = other_->channel().Await(kLimit);
  ASSERT_TRUE(told.ok());
  ASSERT_TRUE(std::holds_alternative<shm::PeerLostFrame>(told->frame));
  EXPECT_EQ(std::get<shm::PeerLostFrame>(told->frame).rank, 0U);
}

}  // namespace lying_ring_test
}  // namespace tidepool::testing
