// Messages from one rank to another: what comes, in which order, and what becomes of a link whose
// other end is elsewhere, lies or leaves.
#include "trainer/comm/rank_link.h"

#include <sys/socket.h>

#include <cstddef>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/fakes/real_clock.h"
#include "tests/trainer/comm/local_ranks.h"
#include "trainer/comm/meeting/peer_socket.h"

namespace tidepool::trainer {
namespace rank_link_test {

using ::testing::HasSubstr;

constexpr uint64_t kLarge = 8 << 20;  // more than a socket keeps

// `body` at both ends of a link from rank 1 to rank 0.
void RunEnds(const std::string& run, const std::function<void(RankLink&)>& body) {
  RunRanks(2, run, [&](LocalMeeting& meeting, const Rendezvous&) {
    ASSERT_TRUE(meeting.Gather().ok());
    auto link = meeting.MakeLink({.name = "stages 1 to 0", .from = 1, .to = 0});
    ASSERT_TRUE(link.ok()) << link.status().Format();
    body(*link.value());
  });
}

std::vector<int> Numbers(uint64_t bytes, int first) {
  std::vector<int> numbers(bytes / sizeof(int));
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

TEST(RankLink, SendsInTheBackgroundAndInOrder) {
  RunEnds("order", [](RankLink& link) {
    std::vector<std::vector<int>> messages;
    for (int i = 0; i < 4; ++i)
      messages.push_back(link.sends() ? Numbers(kLarge, i)
                                      : std::vector<int>(kLarge / sizeof(int)));
    uint64_t last = 0;
    for (int i = 0; i < 4; ++i) {
      last = link.Start("message " + std::to_string(i), messages[i].data(), kLarge);
      EXPECT_EQ(last, i + 1U);
      // The end that sends goes on before the other one has asked for anything.
      if (link.sends()) continue;
      EXPECT_TRUE(link.Wait(last).ok());
      EXPECT_EQ(messages[i], Numbers(kLarge, i));
    }
    if (!link.sends()) return;
    EXPECT_TRUE(link.Wait(last).ok());
    EXPECT_TRUE(link.Ended(last));
  });
}

// What a rank of another attempt, or one that is wrong, would send.
TEST(RankLink, AnotherMessageOrAnotherSizeEndsTheLinkAndIsNamed) {
  for (const bool other_size : {false, true}) {
    RunEnds(other_size ? "size" : "name", [other_size](RankLink& link) {
      std::vector<int> bytes = Numbers(4096, 1);
      const std::vector<int> before = bytes;
      const bool differs = link.sends();
      const uint64_t number =
          link.Start(differs && !other_size ? "output of stage 5" : "output of stage 4",
                     bytes.data(), differs && other_size ? 2048 : 4096);
      const Status ended = link.Wait(number);
      if (link.sends()) return;  // the bytes have gone, and nobody has taken them
      EXPECT_EQ(ended.id(), ErrorId::kCollectiveFailed);
      EXPECT_THAT(ended.Line(), HasSubstr("output of stage 4"));
      EXPECT_THAT(ended.why(), HasSubstr(other_size ? "2048 bytes" : "output of stage 5"));
      EXPECT_EQ(bytes, before) << "nothing is written for what was not asked for";
      EXPECT_EQ(link.Wait(link.Start("next", bytes.data(), 64)).id(), ErrorId::kCollectiveFailed);
    });
  }
}

// The link's end at rank 0, over a socket whose other end is the test's.
std::unique_ptr<RankLink> EndOver(UniqueFd socket, bool sends) {
  SocketGroup group;
  group.name = "stages 1 to 0";
  group.clock = RealClock();
  group.timeout_ms = 60'000;
  group.members.resize(2);
  group.members[1] = std::move(socket);
  return std::make_unique<RankLink>(std::move(group), /*peer=*/1, sends);
}

TEST(RankLink, GarbageEndsItAndGoesNowhere) {
  SocketPair pair = MakePair(SOCK_STREAM);
  const auto link = EndOver(std::move(pair.ours), /*sends=*/false);
  const std::vector<char> garbage(4096, 0x5A);
  ASSERT_EQ(send(pair.theirs.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL), 4096);

  std::vector<std::byte> place(256, std::byte{1});
  const std::vector<std::byte> before = place;
  EXPECT_EQ(link->Wait(link->Start("output", place.data(), place.size())).id(),
            ErrorId::kCollectiveFailed);
  EXPECT_EQ(place, before);
}

TEST(RankLink, ARankThatLeavesEndsTheWaitOfTheOther) {
  RunEnds("leaves", [](RankLink& link) {
    if (link.sends()) return;
    std::vector<std::byte> place(256);
    const Status ended = link.Wait(link.Start("output", place.data(), place.size()));
    EXPECT_EQ(ended.id(), ErrorId::kCollectiveFailed);
    EXPECT_THAT(ended.why(), HasSubstr("has left"));
  });
}

TEST(RankLink, WhatIsGivenUpEndsWithTheReason) {
  SocketPair pair = MakePair(SOCK_STREAM);  // nobody reads
  const auto link = EndOver(std::move(pair.ours), /*sends=*/true);
  std::vector<std::byte> bytes(kLarge);
  const uint64_t number = link->Start("output", bytes.data(), bytes.size());
  EXPECT_FALSE(link->Ended(number));
  link->GiveUp(Status(ErrorId::kStepAbandoned, "enough"));
  EXPECT_TRUE(link->Ended(number));
  EXPECT_EQ(link->Wait(number).id(), ErrorId::kStepAbandoned);
}

}  // namespace rank_link_test
}  // namespace tidepool::trainer
