#include "memserver/control/bounds/user_pace.h"

#include <gtest/gtest.h>

#include <memory>
#include <variant>
#include <vector>

#include "memserver/control/bounds/peer_memory.h"
#include "memserver/control/spec_shelf.h"
#include "shm/spec/encode.h"
#include "tests/memserver/control/control_fixture.h"

namespace tidepool::memserver {
namespace user_pace_test {

constexpr uint32_t kAlice = 1000, kBob = 1001;

TEST(UserPace, AFloodCostsTheBurstAndThenTheRateAndHoldsUpNobodyElse) {
  const UserPaceLimits limits;
  UserPace pace(limits);
  constexpr uint64_t kEach = 60 * kKiB + 1;
  uint64_t spent = 0, turns_of_bob = 0;
  constexpr int64_t kSeconds = 20;
  int64_t now_ns = 0;
  for (uint64_t tries = 0; now_ns < kSeconds * kNsPerSecond; ++tries) {
    const int64_t pause_ns = pace.PauseNs(kAlice, now_ns);
    turns_of_bob += pace.PauseNs(kBob, now_ns) == 0 ? 1 : 0;
    ASSERT_EQ(turns_of_bob, tries + 1) << "bob never waits";
    if (pause_ns == 0) {
      pace.Spend(kAlice, kEach, now_ns);
      spent += kEach;
    }
    now_ns += pause_ns;
  }
  EXPECT_GE(spent, limits.burst + (kSeconds - 1) * limits.per_second)
      << "what is granted can be had";
  EXPECT_LE(spent, limits.burst + kSeconds * limits.per_second + kEach);
}

TEST(UserPace, TheLargestDescriptionIsReadAtOnceAndTheNextOneAfterAWait) {
  UserPace pace;
  pace.Spend(kAlice, shm::kSpecBytesMax - 1, 0);
  EXPECT_EQ(pace.PauseNs(kAlice, 0), 0);
  pace.Spend(kAlice, shm::kSpecBytesMax, 0);
  const int64_t pause_ns = pace.PauseNs(kAlice, 0);
  EXPECT_GT(pause_ns, kNsPerSecond);
  EXPECT_EQ(pace.PauseNs(kAlice, pause_ns), 0) << "one wait is enough";
}

TEST(UserPace, ManyUsersAreForgottenOneAfterTheOther) {
  UserPace pace({.burst = 10, .per_second = 1000});
  pace.Spend(kAlice, 1'000'000, 0);
  for (uint32_t uid = 2000; uid < 6000; ++uid)
    pace.Spend(uid, 1, static_cast<int64_t>(uid) * kNsPerMs);
  EXPECT_GT(pace.PauseNs(kAlice, 6 * kNsPerSecond), 0) << "but not who owes something";
}

TEST(UserPace, WhatIsDecodedIsCountedAlsoWhenItIsRefusedAndNotForTheOtherRanks) {
  const PeerMemory memory;
  SpecShelf shelf(&memory);
  const auto bytes = shm::Encode(testing::SmallSpec());
  auto damaged = bytes;
  damaged.back() ^= std::byte{0xff};
  const auto decode = [&](const std::vector<std::byte>& encoded) {
    PeerMemory::Share share = shelf.Open(kAlice);
    return shelf.Decode(kAlice, encoded, &share);
  };
  EXPECT_FALSE(decode(damaged).ok());
  EXPECT_EQ(shelf.TakeDecodedBytes(), damaged.size());
  const auto first = decode(bytes), second = decode(bytes);
  EXPECT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(shelf.TakeDecodedBytes(), bytes.size());
  EXPECT_EQ(shelf.TakeDecodedBytes(), 0U);
}

// A share that does not grow again: what is read of a user has an end.
class PacedServer : public ControlServerTest {
 protected:
  static constexpr uint64_t kClients = 20;
  void SetUp() override {
    Start({.socket_dir = "",
           .user_pace = {.burst = kClients / 2 * UserPace::kConnection, .per_second = 1}});
  }
  // The control thread has been woken so many times, and has done all that it found then.
  void TakeTurns(int count) {
    for (int i = 0; i < count; ++i) {
      replies_.Push(SnapshotReady{std::make_shared<const Snapshot>()});
      std::vector<std::shared_ptr<const Snapshot>> taken;
      while (taken.empty()) {
        pollfd entry{snapshots_.event_fd(), POLLIN, 0};
        ASSERT_EQ(poll(&entry, 1, static_cast<int>(kLimit / kNsPerMs)), 1);
        snapshots_.ClearEvent();
        snapshots_.TakeAll(&taken);
      }
    }
  }
};

TEST_F(PacedServer, GreetingsOfAUserWhoHasHadItsShareAreNotRead) {
  std::vector<UniqueFd> clients;
  for (uint64_t i = 0; i < kClients; ++i) {
    clients.push_back(Connect());
    Greet(clients.back());
    TakeTurns(4);
  }
  TakeTurns(50);
  events_.ClearEvent();
  events_.TakeAll(&taken_);
  uint64_t reserved = 0;
  for (const ControlEvent& event : taken_)
    reserved += std::holds_alternative<ReserveJob>(event) ? 1 : 0;
  EXPECT_GT(reserved, 0U) << "as far as the share goes";
  EXPECT_LT(reserved, kClients / 2);
}

TEST_F(PacedServer, AWaitOfTheServersMakingIsNoSlowGreeting) {
  Stop();
  Start({.socket_dir = "",
         .greeting_timeout_ns = kNsPerSecond,
         .user_pace = {.burst = 2 * UserPace::kConnection, .per_second = 8 * kKiB}});
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(Connect());
    Greet(clients.back());
  }
  for (int i = 0; i < 3; ++i) Expect<ReserveJob>();
}

}  // namespace user_pace_test
}  // namespace tidepool::memserver
