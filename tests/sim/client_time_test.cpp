// MemClient in simulated time: its limits are those of the clock that it was given, so that minutes
// of waiting pass in a moment, and nothing comes sooner or later than it should.
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "client/mem_client.h"
#include "tests/sim/sim_control.h"

namespace tidepool::memserver {
namespace client_time_test {

constexpr int64_t kWaitNs = 600 * kNsPerSecond;
// The longest sleep between two looks of a client that waits.
constexpr int64_t kLookNs = kNsPerSecond;

// Rank 0 of a job of two is a MemClient, rank 1 does what the test says. Both have put their
// weights, and their gradients of the first step.
class ClientTime : public ::testing::Test {
 protected:
  ClientTime()
      : spec_(MakeSpec({.world = 2, .chunks = 1})),
        control_(&world_, spec_),
        clock_(&world_, &control_) {
    options_.clock = &clock_;
    options_.socket_dir = control_.directory();
    options_.wait_timeout_ns = kWaitNs;
    options_.spin_ns = 0;
  }

  Status Connect() {
    auto client = client::MemClient::Connect(options_, spec_, 0);
    if (client.ok()) client_ = std::move(client).value();
    return client.status();
  }
  void BeginStep() {
    const Status connected = Connect();
    ASSERT_TRUE(connected.ok()) << connected.Format();
    other_ = world_.Join(spec_, 1);
    ASSERT_NE(other_, nullptr);
    const auto put = client_->StartPutWeights({0, 0, kShard, 0});
    ASSERT_TRUE(put.ok() && client_->Wait(put.value()).ok());
    world_.Await(other_.get(), other_->Put(0, kShard, kShard, 0));
    const auto submitted = client_->StartSubmitGradient({0, 0, kShard, 0}, 0, 0);
    ASSERT_TRUE(submitted.ok() && client_->Wait(submitted.value()).ok());
    world_.Await(other_.get(), other_->Submit({0, kShard, kShard, 0, 0, 0}));
  }
  // Rank 0 ends its step: an answer needs rank 1.
  Result<client::Outcome> EndStep() {
    client::StepEnd end;
    end.learning_rate = 0.01F;
    TP_ASSIGN_OR_RETURN(const client::Ticket ticket, client_->StartEndStep(end));
    begin_ns_ = clock_.NowNs();
    return client_->Wait(ticket);
  }
  int64_t waited_ns() const { return clock_.NowNs() - begin_ns_; }

  static constexpr uint64_t kShard = 96;
  ServeWorld world_;
  const shm::JobSpec spec_;
  SimControl control_;
  SimClock clock_;
  client::ClientOptions options_;
  std::unique_ptr<client::MemClient> client_;
  std::unique_ptr<FakeRank> other_;
  int64_t begin_ns_ = 0;
};

TEST_F(ClientTime, AWaitEndsAtItsLimit) {
  ASSERT_NO_FATAL_FAILURE(BeginStep());
  const auto outcome = EndStep();
  EXPECT_EQ(outcome.status().id(), ErrorId::kWaitTimeout) << outcome.status().Format();
  EXPECT_GE(waited_ns(), kWaitNs);
  EXPECT_LT(waited_ns(), kWaitNs + kLookNs);
}

TEST_F(ClientTime, AnAnswerJustBeforeTheLimitIsInTime) {
  ASSERT_NO_FATAL_FAILURE(BeginStep());
  const int64_t answered_ns = clock_.NowNs() + kWaitNs - kLookNs;
  clock_.At(answered_ns, [this] { other_->EndStep(0, 0.01F); });
  const auto outcome = EndStep();
  ASSERT_TRUE(outcome.ok()) << outcome.status().Format();
  EXPECT_EQ(outcome.value().version, 1u);
  EXPECT_GE(clock_.NowNs(), answered_ns);
  EXPECT_LT(waited_ns(), kWaitNs);
}

TEST_F(ClientTime, ALostServerIsWaitedForUpToItsLimit) {
  options_.server_timeout_ns = 300 * kNsPerSecond;
  ASSERT_NO_FATAL_FAILURE(BeginStep());
  const int64_t died_ns = clock_.NowNs() + 100 * kNsPerSecond;
  clock_.At(died_ns, [this] { control_.Die(); });
  const auto outcome = EndStep();
  EXPECT_EQ(outcome.status().id(), ErrorId::kServerGone) << outcome.status().Format();
  EXPECT_GE(clock_.NowNs() - died_ns, options_.server_timeout_ns);
  EXPECT_LT(clock_.NowNs() - died_ns, options_.server_timeout_ns + kLookNs);
}

TEST_F(ClientTime, AServerThatDoesNotAnswerTheGreetingIsWaitedForUpToItsLimit) {
  control_.StandStill();
  options_.attach_timeout_ns = 60 * kNsPerSecond;
  begin_ns_ = clock_.NowNs();
  EXPECT_EQ(Connect().id(), ErrorId::kWaitTimeout);
  EXPECT_GE(waited_ns(), options_.attach_timeout_ns);
  EXPECT_LT(waited_ns(), options_.attach_timeout_ns + kLookNs);
}

TEST_F(ClientTime, ASocketWhereNobodyListensIsTriedUpToItsLimit) {
  control_.Die();
  options_.connect_timeout_ns = 60 * kNsPerSecond;
  begin_ns_ = clock_.NowNs();
  EXPECT_EQ(Connect().id(), ErrorId::kNoServer);
  EXPECT_GE(waited_ns(), options_.connect_timeout_ns - kLookNs);
  EXPECT_LT(waited_ns(), options_.connect_timeout_ns + kLookNs);
}

}  // namespace client_time_test
}  // namespace tidepool::memserver
