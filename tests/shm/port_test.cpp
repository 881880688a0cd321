#include "shm/port.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"

namespace tidepool::shm {
namespace port_test {

// Both ends of one session in one process, and the raw memory that a lying client would write.
class PortTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = ServerPort::Create(7);
    ASSERT_TRUE(made.ok()) << made.status().Format();
    server_ = std::move(made).value();
    auto mapped =
        ClientPort::Map(Duplicate(server_->submission_fd()), Duplicate(server_->completion_fd()),
                        Duplicate(server_->doorbell_fd()));
    ASSERT_TRUE(mapped.ok()) << mapped.status().Format();
    client_ = std::move(mapped).value();
    auto raw =
        Segment::Map(Duplicate(server_->submission_fd()), kChannelBytes, PeerAccess::kReadWrite);
    ASSERT_TRUE(raw.ok());
    raw_ = std::move(raw).value();
  }

  RingSlot* RawSlot(uint64_t index) {
    return reinterpret_cast<RingSlot*>(raw_->data() + kRingOffset) + index;
  }
  SubmissionHeader* RawHeader() { return reinterpret_cast<SubmissionHeader*>(raw_->data()); }

  static Request RequestOf(uint64_t counter) {
    Request request{};
    request.counter = counter;
    request.op = static_cast<uint32_t>(Op::kFetch);
    request.element_count = counter * 3;
    return request;
  }
  static Completion CompletionOf(uint64_t counter) {
    Completion completion{};
    completion.counter = counter;
    completion.grad_norm = static_cast<double>(counter) / 2;
    return completion;
  }
  bool DoorbellRang() const {
    pollfd entry{server_->doorbell_fd(), POLLIN, 0};
    return poll(&entry, 1, 0) == 1;
  }

  std::unique_ptr<ServerPort> server_;
  SteadyClock clock_;
  std::unique_ptr<ClientPort> client_;
  std::unique_ptr<Segment> raw_;
  Request request_{};
  Completion completion_{};
};

TEST_F(PortTest, ANewRingIsEmptyOnBothSides) {
  EXPECT_EQ(server_->Pop(&request_), PopResult::kEmpty);
  EXPECT_FALSE(client_->Pop(&completion_));
  EXPECT_FALSE(client_->Ended().has_value());
}

TEST_F(PortTest, RequestsArriveInOrderThroughManyLaps) {
  for (uint64_t i = 1; i <= 5 * kRingEntries; ++i) {
    ASSERT_TRUE(client_->Push(RequestOf(i)));
    ASSERT_EQ(server_->Pop(&request_), PopResult::kItem);
    ASSERT_EQ(request_.counter, i);
    ASSERT_EQ(request_.element_count, i * 3);
    ASSERT_EQ(server_->Pop(&request_), PopResult::kEmpty);
  }
}

TEST_F(PortTest, AFullSubmissionRingRefusesUntilTheServerHasRead) {
  for (uint64_t i = 0; i < kRingEntries; ++i) ASSERT_TRUE(client_->Push(RequestOf(i + 1)));
  EXPECT_FALSE(client_->Push(RequestOf(0)));
  for (uint64_t i = 0; i < kRingEntries; ++i) ASSERT_EQ(server_->Pop(&request_), PopResult::kItem);
  EXPECT_EQ(server_->Pop(&request_), PopResult::kEmpty);
  EXPECT_TRUE(client_->Push(RequestOf(kRingEntries + 1)));
}

TEST_F(PortTest, CompletionsArriveInOrderThroughManyLaps) {
  for (uint64_t i = 1; i <= 5 * kRingEntries; ++i) {
    ASSERT_TRUE(server_->Push(CompletionOf(i)));
    ASSERT_TRUE(client_->Pop(&completion_));
    ASSERT_EQ(completion_.counter, i);
    ASSERT_EQ(completion_.grad_norm, static_cast<double>(i) / 2);
  }
}

TEST_F(PortTest, AClientThatNeverConsumesIsFoundOut) {
  for (uint64_t i = 0; i < kRingEntries; ++i) ASSERT_TRUE(server_->Push(CompletionOf(i + 1)));
  EXPECT_FALSE(server_->Push(CompletionOf(0)));
}

TEST_F(PortTest, TheDoorbellRingsOnlyForASleepingServer) {
  ASSERT_TRUE(client_->Push(RequestOf(1)));
  EXPECT_FALSE(DoorbellRang());
  server_->SetSleeping(true);
  ASSERT_TRUE(client_->Push(RequestOf(2)));
  EXPECT_TRUE(DoorbellRang());
}

TEST_F(PortTest, ABatchIsHandedOverAtItsEnd) {
  server_->SetSleeping(true);
  for (uint64_t i = 1; i < 4; ++i) {
    ASSERT_TRUE(client_->Push(RequestOf(i), More::kYes));
    EXPECT_FALSE(DoorbellRang()) << i;
    EXPECT_EQ(server_->Pop(&request_), PopResult::kEmpty) << i;
  }
  ASSERT_TRUE(client_->Push(RequestOf(4)));
  EXPECT_TRUE(DoorbellRang());
  for (uint64_t i = 1; i <= 4; ++i) {
    ASSERT_EQ(server_->Pop(&request_), PopResult::kItem);
    EXPECT_EQ(request_.counter, i);
  }
  EXPECT_EQ(server_->Pop(&request_), PopResult::kEmpty);
}

TEST_F(PortTest, ALongBatchIsHandedOverInParts) {
  uint64_t seen = 0;
  for (uint64_t i = 1; i <= 40; ++i) {
    ASSERT_TRUE(client_->Push(RequestOf(i), More::kYes));
    while (server_->Pop(&request_) == PopResult::kItem) EXPECT_EQ(request_.counter, ++seen);
    EXPECT_EQ(seen, i / 16 * 16);
  }
  ASSERT_TRUE(client_->Push(RequestOf(41)));
  while (server_->Pop(&request_) == PopResult::kItem) EXPECT_EQ(request_.counter, ++seen);
  EXPECT_EQ(seen, 41U);
}

TEST_F(PortTest, ABatchThatFindsTheRingFullIsHandedOver) {
  constexpr uint64_t kAlone = 3;  // so that the ring is full in the middle of a part
  for (uint64_t i = 1; i <= kRingEntries; ++i)
    ASSERT_TRUE(client_->Push(RequestOf(i), i <= kAlone ? More::kNo : More::kYes));
  server_->SetSleeping(true);
  EXPECT_FALSE(client_->Push(RequestOf(0), More::kYes));
  EXPECT_TRUE(DoorbellRang());
  uint64_t seen = 0;
  while (server_->Pop(&request_) == PopResult::kItem) EXPECT_EQ(request_.counter, ++seen);
  EXPECT_EQ(seen, kRingEntries);
}

// True once for each write of the doorbell or several.
bool TakeRing(int doorbell) {
  uint64_t rings = 0;
  return read(doorbell, &rings, sizeof rings) == sizeof rings;
}

TEST_F(PortTest, TheDoorbellRingsOnceForAllRequestsOfOneSleep) {
  for (int sleep = 0; sleep < 3; ++sleep) {
    server_->SetSleeping(true);
    ASSERT_TRUE(client_->Push(RequestOf(1)));
    EXPECT_TRUE(TakeRing(server_->doorbell_fd())) << sleep;
    ASSERT_TRUE(client_->Push(RequestOf(2)));
    EXPECT_FALSE(TakeRing(server_->doorbell_fd())) << sleep;
    server_->SetSleeping(false);
    ASSERT_TRUE(client_->Push(RequestOf(3)));
    EXPECT_FALSE(TakeRing(server_->doorbell_fd())) << sleep;
  }
}

TEST(ClientPort, AServerThatDoesNotNumberItsSleepsIsRungForEachRequest) {
  auto submission = Segment::Create("submission", kChannelBytes, PeerAccess::kReadWrite);
  auto completion = Segment::Create("completion", kChannelBytes, PeerAccess::kReadOnly);
  ASSERT_TRUE(submission.ok() && completion.ok());
  auto* down = new ((*submission)->data()) SubmissionHeader{};
  down->magic = kSubmissionMagic;
  down->abi = kAbiVersion;
  auto* up = new ((*completion)->data()) CompletionHeader{};
  up->magic = kCompletionMagic;
  up->abi = kAbiVersion;
  up->server_sleeping = kUnnumberedSleep;
  const UniqueFd doorbell(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  auto client =
      ClientPort::Map(UniqueFd(dup((*submission)->fd())), UniqueFd(dup((*completion)->fd())),
                      UniqueFd(dup(doorbell.get())), kAbiVersion);
  ASSERT_TRUE(client.ok()) << client.status().Format();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE((*client)->Push(Request{}));
    EXPECT_TRUE(TakeRing(doorbell.get())) << i;
  }
}

TEST_F(PortTest, EndReachesAClientThatLooksOnlyAtItsRing) {
  server_->End(ErrorId::kProtocolViolation);
  EXPECT_EQ(client_->Ended(), ErrorId::kProtocolViolation);
  client_->WaitForCompletion(&clock_, kNsPerSecond, 0);  // returns at once
}

TEST_F(PortTest, WaitingEndsAtItsTimeLimit) {
  const int64_t start = clock_.NowNs();
  client_->WaitForCompletion(&clock_, 20 * kNsPerMs, 0);
  EXPECT_GE(clock_.NowNs() - start, 19 * kNsPerMs);
}

TEST_F(PortTest, AClientThatSleepsIsWokenByTheAnswer) {
  constexpr int64_t kLong = 3 * kNsPerSecond;
  std::thread server([this] {
    SteadyClock().SleepNs(50 * kNsPerMs);  // until the client sleeps
    EXPECT_TRUE(server_->Push(CompletionOf(1)));
    server_->Wake();
  });
  const int64_t begin = clock_.NowNs();
  client_->WaitForCompletion(&clock_, kLong, 0);
  EXPECT_LT(clock_.NowNs() - begin, kLong);
  Completion completion{};
  EXPECT_TRUE(client_->Pop(&completion));
  server.join();
}

TEST_F(PortTest, AnImpossibleSequenceIsAViolation) {
  for (const uint64_t lie : {uint64_t{2}, kRingEntries, ~uint64_t{0}, uint64_t{1} << 63}) {
    RawSlot(0)->sequence.store(lie);
    EXPECT_EQ(server_->Pop(&request_), PopResult::kViolation) << lie;
  }
  RawSlot(0)->sequence.store(1);
  EXPECT_EQ(server_->Pop(&request_), PopResult::kItem);
}

TEST_F(PortTest, AnItemOfTheLastLapIsNoViolationButOneOfTwoLapsAgoIs) {
  for (uint64_t i = 1; i <= 2 * kRingEntries; ++i) {
    ASSERT_TRUE(client_->Push(RequestOf(i)));
    ASSERT_EQ(server_->Pop(&request_), PopResult::kItem);
  }
  EXPECT_EQ(server_->Pop(&request_), PopResult::kEmpty);
  RawSlot(0)->sequence.store(1);
  EXPECT_EQ(server_->Pop(&request_), PopResult::kViolation);
}

TEST_F(PortTest, AnImpossibleConsumedPositionIsAViolation) {
  constexpr int kLooks = 64;  // the position is read once in so many
  const auto look = [this] {
    PopResult result = PopResult::kEmpty;
    for (int i = 0; i < kLooks && result == PopResult::kEmpty; ++i)
      result = server_->Pop(&request_);
    return result;
  };
  ASSERT_TRUE(server_->Push(CompletionOf(1)));
  RawHeader()->completions_consumed.store(1);
  EXPECT_EQ(look(), PopResult::kEmpty);
  RawHeader()->completions_consumed.store(0);
  EXPECT_EQ(look(), PopResult::kViolation) << "positions never go back";
  RawHeader()->completions_consumed.store(2);
  EXPECT_EQ(look(), PopResult::kViolation) << "more consumed than was pushed";
  RawHeader()->completions_consumed.store(~uint64_t{0});
  EXPECT_EQ(look(), PopResult::kViolation);
}

TEST_F(PortTest, AnImpossibleConsumedPositionIsFoundBeforeASleep) {
  EXPECT_EQ(server_->Pop(&request_), PopResult::kEmpty);
  RawHeader()->completions_consumed.store(1);
  EXPECT_EQ(server_->Pop(&request_), PopResult::kEmpty) << "it is not read in every look";
  server_->SetSleeping(true);
  EXPECT_EQ(server_->Pop(&request_), PopResult::kViolation);
}

TEST_F(PortTest, MemoryOfAnotherKindOrVersionIsRefused) {
  EXPECT_EQ(ClientPort::Map(Duplicate(server_->completion_fd()),
                            Duplicate(server_->submission_fd()), Duplicate(server_->doorbell_fd()))
                .status()
                .code(),
            Code::kIo)
      << "the completion segment cannot be mapped for writing";
  EXPECT_EQ(ClientPort::Map(Duplicate(server_->submission_fd()),
                            Duplicate(server_->submission_fd()), Duplicate(server_->doorbell_fd()))
                .status()
                .id(),
            ErrorId::kHandshakeBad);
  RawHeader()->abi = kAbiVersion + 1;
  EXPECT_EQ(ClientPort::Map(Duplicate(server_->submission_fd()),
                            Duplicate(server_->completion_fd()), Duplicate(server_->doorbell_fd()))
                .status()
                .id(),
            ErrorId::kAbiMismatch);
}

// The threads share two mappings of the same pages through the ports; the thread sanitizer checks
// the ordering of everything they touch through one mapping, here the ports' private counters and
// the test's own array.
TEST_F(PortTest, EchoWithSleepingOnBothSidesLosesNothing) {
  constexpr uint64_t kRounds = 20'000;
  std::thread server([this] {
    uint64_t answered = 0;
    Request request{};
    while (answered < kRounds) {
      const PopResult popped = server_->Pop(&request);
      ASSERT_NE(popped, PopResult::kViolation);
      if (popped == PopResult::kItem) {
        ASSERT_TRUE(server_->Push(CompletionOf(request.counter)));
        server_->Wake();
        ++answered;
        continue;
      }
      server_->SetSleeping(true);
      if (server_->Pop(&request) == PopResult::kItem) {
        ASSERT_TRUE(server_->Push(CompletionOf(request.counter)));
        server_->Wake();
        ++answered;
      } else {
        pollfd entry{server_->doorbell_fd(), POLLIN, 0};
        poll(&entry, 1, 1);
      }
      server_->SetSleeping(false);
    }
  });
  uint64_t sent = 0, received = 0;
  Completion completion{};
  while (received < kRounds) {
    while (sent < kRounds && sent - received < 3 && client_->Push(RequestOf(sent + 1))) ++sent;
    client_->WaitForCompletion(&clock_, kNsPerSecond, received % 2 == 0 ? 0 : 5'000);
    while (client_->Pop(&completion)) {
      ++received;
      ASSERT_EQ(completion.counter, received);
    }
  }
  server.join();
}

// The server looks at a slot at the same moment as the client fills it, in every order: never is an
// honest client called a liar.
TEST_F(PortTest, AServerThatSpinsTakesEachRequestAtTheMomentItAppears) {
#ifdef TIDEPOOL_SANITIZED
  constexpr uint64_t kRequests = 20'000;
#else
  constexpr uint64_t kRequests = 400'000;
#endif
  std::atomic<uint64_t> taken{0};
  std::atomic<bool> accused{false};
  std::thread server([&] {
    Request request{};
    while (taken.load(std::memory_order_relaxed) < kRequests && !accused) {
      const PopResult popped = server_->Pop(&request);
      if (popped == PopResult::kItem) taken.fetch_add(1, std::memory_order_relaxed);
      if (popped == PopResult::kViolation) accused = true;
    }
  });
  // One request at a time, so that the server always spins on an empty ring when it comes.
  for (uint64_t sent = 0; sent < kRequests && !accused; ++sent) {
    ASSERT_TRUE(client_->Push(RequestOf(sent + 1)));
    for (uint64_t i = 0; taken.load(std::memory_order_relaxed) <= sent && !accused; ++i) {
      if (i % 4096 == 4095) std::this_thread::yield();
    }
  }
  server.join();
  EXPECT_FALSE(accused);
}

TEST(Messages, AnEndOfStepUsesTheSameBytesAsARequest) {
  EndStepRequest end{};
  end.counter = 9;
  end.op = static_cast<uint32_t>(Op::kEndStep);
  end.learning_rate = 0.25F;
  end.random_state = 11;
  const Request request = AsRequest(end);
  EXPECT_EQ(request.counter, 9U);
  EXPECT_EQ(request.op, 4U);
  EXPECT_EQ(AsEndStep(request).learning_rate, 0.25F);
  EXPECT_EQ(AsEndStep(request).random_state, 11U);
}

}  // namespace port_test
}  // namespace tidepool::shm
