// To which attempt at a step the requests of a MemClient belong: at servers that know of attempts,
// and at earlier ones.
#include "client/attempt.h"

#include <gtest/gtest.h>

#include "tests/client/played_session.h"

namespace tidepool::client {
namespace attempt_test {

constexpr uint32_t kBefore = shm::kAbiAttempt - 1;

class AttemptTest : public PlayedSession {
 protected:
  void SetUp() override { options_.server_timeout_ns = 5 * kNsPerSecond; }
  // Connects to a server of this version, where `attempt` is open.
  void ConnectTo(uint32_t protocol, uint32_t attempt) {
    server_.protocol = protocol;
    server_.attempt = attempt;
    Connect();
  }
  uint32_t NextFlags() {
    const auto request = server_.NextRequest();
    EXPECT_TRUE(request.has_value());
    return request ? request->flags : ~0U;
  }
  // Flags of a gradient, which is answered.
  uint32_t FlagsOfGradient() {
    const Ticket ticket = client_->StartSubmitGradient({0, 0, 64, 0}, 12, 0).value();
    const uint32_t flags = NextFlags();
    server_.Answer(++answered_);
    EXPECT_TRUE(client_->Wait(ticket).ok());
    return flags;
  }
  Ticket StartEnd() {
    return client_->StartEndStep({.version = 12, .learning_rate = 0.5F}).value();
  }
  // Flags of an end of step, which is answered so.
  uint32_t FlagsOfEnd(ErrorId answer) {
    const Ticket ticket = StartEnd();
    const uint32_t flags = NextFlags();
    server_.Answer(++answered_, 0, answer);
    EXPECT_EQ(client_->Wait(ticket).status().id(), answer);
    return flags;
  }
  // The server ends and one of this version follows; while `ticket` is waited for it is told
  // `answer`. Flags of what was sent again.
  uint32_t FlagsAgain(uint32_t protocol, Ticket ticket, ErrorId answer) {
    uint32_t flags = 0;
    const auto outcome = Beside(
        [&] {
          server_.Die();
          server_.TakeResume();
          server_.protocol = protocol;
          server_.Resumed(2);
          flags = NextFlags();
          server_.Answer(answered_ = 1, 0, answer);
        },
        [&] { return client_->Wait(ticket); });
    EXPECT_EQ(outcome.status().id(), answer);
    return flags;
  }

  uint64_t answered_ = 0;
};

TEST_F(AttemptTest, IsTheOneThatWasOpenAtTheWelcomeAndCountsFromThere) {
  ConnectTo(shm::kAbiVersion, 3);
  EXPECT_EQ(FlagsOfGradient(), shm::FlagsOfAttempt(3));
  EXPECT_EQ(FlagsOfEnd(ErrorId::kNonFinite), shm::FlagsOfAttempt(3));
  EXPECT_EQ(FlagsOfGradient(), shm::FlagsOfAttempt(4)) << "the third was dropped";
  EXPECT_EQ(FlagsOfEnd(ErrorId::kConfigBadValue), shm::FlagsOfAttempt(4));
  EXPECT_EQ(FlagsOfEnd(ErrorId::kNone), shm::FlagsOfAttempt(4))
      << "an end that was refused ends no attempt";
  EXPECT_EQ(FlagsOfGradient(), shm::FlagsOfAttempt(0)) << "the first one at the next step";
  const Ticket fetch = Fetch(10);
  EXPECT_EQ(NextFlags(), 0U) << "a fetch is of no attempt";
  server_.Answer(++answered_);
  EXPECT_TRUE(client_->Wait(fetch).ok());
}

TEST_F(AttemptTest, StaysThatOfARequestThatIsSentAgain) {
  ConnectTo(shm::kAbiVersion, 6);
  const Ticket end = StartEnd();
  EXPECT_EQ(NextFlags(), shm::FlagsOfAttempt(6));
  EXPECT_EQ(FlagsAgain(shm::kAbiVersion, end, ErrorId::kNonFinite),
            shm::FlagsOfAttempt(6) | shm::kResubmitted);
  EXPECT_EQ(FlagsOfGradient(), shm::FlagsOfAttempt(7));
}

TEST_F(AttemptTest, IsNotSaidToAServerThatKnowsOfNone) {
  ConnectTo(shm::kAbiVersion, 0);
  const Ticket end = StartEnd();
  EXPECT_EQ(NextFlags(), shm::FlagsOfAttempt(0));
  EXPECT_EQ(FlagsAgain(kBefore, end, ErrorId::kNone), shm::kResubmitted);
  EXPECT_EQ(FlagsOfGradient(), 0U);
  const Ticket next = StartEnd();
  EXPECT_EQ(NextFlags(), 0U);
  EXPECT_EQ(FlagsAgain(shm::kAbiVersion, next, ErrorId::kNone),
            shm::FlagsOfAttempt(0) | shm::kResubmitted)
      << "a step was sealed since: the first attempt is open";
}

TEST_F(AttemptTest, OfAServerThatSaysNothingOfItIsKnownFromTheNextSealedStepOn) {
  ConnectTo(kBefore, 0);
  EXPECT_EQ(FlagsOfGradient(), 0U);
  const Ticket end = StartEnd();
  EXPECT_EQ(NextFlags(), 0U);
  EXPECT_EQ(FlagsAgain(shm::kAbiVersion, end, ErrorId::kNonFinite), shm::kResubmitted);
  EXPECT_EQ(FlagsOfGradient(), 0U) << "how many were dropped before is not known";
  EXPECT_EQ(FlagsOfEnd(ErrorId::kNone), 0U);
  EXPECT_EQ(FlagsOfGradient(), shm::FlagsOfAttempt(0));
}

TEST_F(AttemptTest, IsForgottenWhenAServerThatKnowsOfNoneDropsIt) {
  ConnectTo(shm::kAbiVersion, 0);
  const Ticket end = StartEnd();
  EXPECT_EQ(NextFlags(), shm::FlagsOfAttempt(0));
  EXPECT_EQ(FlagsAgain(kBefore, end, ErrorId::kNonFinite), shm::kResubmitted);
  const Ticket next = StartEnd();
  EXPECT_EQ(NextFlags(), 0U);
  EXPECT_EQ(FlagsAgain(shm::kAbiVersion, next, ErrorId::kNone), shm::kResubmitted);
}

}  // namespace attempt_test
}  // namespace tidepool::client
