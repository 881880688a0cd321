// What clients make memserver hold: sums, bounds, and descriptions that ranks of one job share.
#include "memserver/control/bounds/peer_memory.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "memserver/control/handshake.h"
#include "memserver/control/spec_shelf.h"
#include "memserver/control/bounds/user_log_limiter.h"
#include "shm/messages.h"
#include "shm/spec/encode.h"
#include "tests/shm/small_spec.h"

namespace tidepool::memserver {
namespace peer_memory_test {

constexpr PeerMemoryLimits kLimits{.user = 100, .all = 150, .always = 10};
constexpr uint32_t kAlice = 1, kBob = 2, kCarol = 3;

TEST(PeerMemory, ASharesBytesAreThoseItWasGrantedAndComeBackAtItsEnd) {
  const PeerMemory memory(kLimits);
  {
    PeerMemory::Share share = memory.Open(kAlice);
    ASSERT_TRUE(share.Resize(60).ok());
    EXPECT_EQ(memory.bytes(), 60U);
    const Status refused = share.Resize(101);
    EXPECT_EQ(refused.id(), ErrorId::kNotReady) << "to be tried again";
    EXPECT_EQ(share.bytes(), 60U);
    ASSERT_TRUE(share.Resize(20).ok());
    const PeerMemory::Share moved = std::move(share);
    EXPECT_EQ(memory.bytes(), 20U);
  }
  EXPECT_EQ(memory.bytes(), 0U);
}

TEST(PeerMemory, SharesOfAUserAreSummedAndOthersAreNotAffected) {
  const PeerMemory memory(kLimits);
  PeerMemory::Share first = memory.Open(kAlice), second = memory.Open(kAlice),
                    other = memory.Open(kBob);
  ASSERT_TRUE(first.Resize(60).ok());
  EXPECT_FALSE(second.Resize(41).ok());
  EXPECT_TRUE(second.Resize(40).ok());
  EXPECT_TRUE(other.Resize(50).ok());
}

TEST(PeerMemory, WhereAllIsTakenASmallOneIsThereForEverybody) {
  const PeerMemory memory(kLimits);
  PeerMemory::Share alice = memory.Open(kAlice), bob = memory.Open(kBob),
                    carol = memory.Open(kCarol);
  ASSERT_TRUE(alice.Resize(100).ok());
  ASSERT_TRUE(bob.Resize(50).ok());
  EXPECT_FALSE(carol.Resize(11).ok());
  EXPECT_TRUE(carol.Resize(10).ok());
  EXPECT_FALSE(bob.Resize(51).ok());
  alice = memory.Open(kAlice);
  EXPECT_TRUE(carol.Resize(11).ok());
}

shm::JobSpec Spec(const std::string& name = "job") {
  shm::JobSpec spec = testing::SmallSpec();
  spec.name = name;
  spec.parameters[0].name = "a.name.that.is.longer.than.what.a.string.has.in.place";
  return spec;
}

TEST(SpecShelf, RanksOfOneJobShareItsDescriptionAndTheLastOneGivesItBack) {
  const PeerMemory memory;
  SpecShelf shelf(&memory);
  const auto bytes = shm::Encode(Spec()), others = shm::Encode(Spec("other"));
  const auto decode = [&](uint32_t uid, const std::vector<std::byte>& encoded) {
    PeerMemory::Share share = shelf.Open(uid);
    EXPECT_TRUE(share.Resize(encoded.size()).ok());
    auto spec = shelf.Decode(uid, encoded, &share);
    EXPECT_TRUE(spec.ok() && share.bytes() == 0);
    return std::move(spec).value();
  };
  auto first = decode(kAlice, bytes);
  const uint64_t once = memory.bytes();
  EXPECT_EQ(once, DecodedBytes(*first));
  EXPECT_GT(once, sizeof(shm::JobSpec) + sizeof(shm::ParameterSpec) + 52);
  auto second = decode(kAlice, bytes);
  EXPECT_EQ(first.get(), second.get());
  EXPECT_EQ(memory.bytes(), once);
  const auto other = decode(kAlice, others), of_bob = decode(kBob, bytes);
  EXPECT_NE(other.get(), first.get());
  EXPECT_NE(of_bob.get(), first.get()) << "nothing is shared between users";
  EXPECT_GT(memory.bytes(), 2 * once);
  const uint64_t all = memory.bytes();
  first.reset();
  EXPECT_EQ(memory.bytes(), all);
  second.reset();
  EXPECT_EQ(memory.bytes(), all - once);
  EXPECT_NE(decode(kAlice, bytes), nullptr) << "and comes anew";
}

TEST(SpecShelf, ADescriptionThatHasNoRoomDecodedIsToBeSentAgain) {
  const auto bytes = shm::Encode(Spec());
  const PeerMemory memory({.user = bytes.size() + 8, .all = 1 << 20, .always = 0});
  SpecShelf shelf(&memory);
  PeerMemory::Share share = shelf.Open(kAlice);
  ASSERT_TRUE(share.Resize(bytes.size()).ok());
  EXPECT_EQ(shelf.Decode(kAlice, bytes, &share).status().id(), ErrorId::kNotReady);
  EXPECT_EQ(memory.bytes(), 0U);
}

// A greeting is counted as it is announced, from Hello until its connection or its job ends.
TEST(Greetings, AreCountedAndThoseBeyondTheBoundHearThatTheyMayTryAgain) {
  const auto bytes = shm::Encode(Spec());
  const PeerMemory memory({.user = 2 * bytes.size(), .all = 1 << 20, .always = 0});
  SpecShelf shelf(&memory);
  const auto hello = [&](ConnectionProtocol* protocol) {
    return protocol
        ->OnFrame(shm::HelloFrame{shm::kOwnProtocols, 0, 1, 1, bytes.size(),
                                  shm::Fingerprint(bytes), 0xabc},
                  {})
        .status();
  };
  ConnectionProtocol first(1, kAlice, 1, 1, &shelf);
  auto second = std::make_unique<ConnectionProtocol>(2, kAlice, 1, 1, &shelf);
  ConnectionProtocol third(3, kAlice, 1, 1, &shelf), of_bob(4, kBob, 1, 1, &shelf);
  EXPECT_TRUE(hello(&first).ok());
  EXPECT_TRUE(hello(second.get()).ok());
  EXPECT_EQ(memory.bytes(), 2 * bytes.size());
  EXPECT_EQ(hello(&third).id(), ErrorId::kNotReady);
  EXPECT_TRUE(hello(&of_bob).ok());
  second.reset();
  EXPECT_EQ(memory.bytes(), 2 * bytes.size()) << "Alice's and Bob's";
}

TEST(Greetings, AScheduleIsCountedUntilTheLoopHasIt) {
  const PeerMemory memory({.user = 4096, .all = 4096, .always = 0});
  SpecShelf shelf(&memory);
  auto spec = std::make_shared<shm::JobSpec>();
  spec->chunks.resize(1);
  const auto open = [&spec](ConnectionProtocol* protocol) {
    (void)protocol->AnswerTo({.spec = spec});
    protocol->SetState(ConnectionState::kOpen);
  };
  ConnectionProtocol protocol(1, kAlice, 1, 1, &shelf);
  open(&protocol);
  const std::vector<ChunkId> part(512, 0);
  ASSERT_TRUE(protocol.OnFrame(shm::SchedulePartFrame{4096, part}, {}).ok());
  EXPECT_EQ(memory.bytes(), 2048U);
  ASSERT_TRUE(protocol.OnFrame(shm::SchedulePartFrame{4096, part}, {}).ok());
  EXPECT_EQ(protocol.OnFrame(shm::SchedulePartFrame{4096, part}, {}).status().id(),
            ErrorId::kNotReady);
  ConnectionProtocol small(2, kBob, 1, 1, &shelf);
  open(&small);
  EXPECT_EQ(small.OnFrame(shm::SchedulePartFrame{1, {0}}, {}).status().id(), ErrorId::kNotReady)
      << "all of it is taken";
}

TEST(UserLogLimiter, AUserHasSoManyLinesAtOnceAndThenAFew) {
  UserLogLimiter limiter;
  const int64_t start = 1'000'000 * kNsPerSecond;
  for (int64_t i = 0; i < UserLogLimiter::kLinesAtOnce; ++i)
    EXPECT_EQ(limiter.Allow(kAlice, start), 0U) << i;
  EXPECT_FALSE(limiter.Allow(kAlice, start).has_value());
  EXPECT_FALSE(limiter.Allow(kAlice, start).has_value());
  EXPECT_EQ(limiter.Allow(kBob, start), 0U) << "another user has lines of its own";
  EXPECT_EQ(limiter.Allow(kAlice, start + UserLogLimiter::kLineNs), 2U)
      << "what was left out is told";
  EXPECT_FALSE(limiter.Allow(kAlice, start + UserLogLimiter::kLineNs).has_value());
  const int64_t later = start + (UserLogLimiter::kLinesAtOnce + 1) * UserLogLimiter::kLineNs;
  EXPECT_EQ(limiter.Allow(kAlice, later), 1U);
  for (uint32_t uid = 100; uid < 1100; ++uid)
    EXPECT_EQ(limiter.Allow(uid, later), 0U) << "many users";
}

}  // namespace peer_memory_test
}  // namespace tidepool::memserver
