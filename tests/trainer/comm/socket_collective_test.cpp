// The collectives of one machine: what all forms of them do, and what becomes of a group when a
// rank leaves or stands still.
#include "trainer/comm/socket_collective.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "device/host/host_device.h"
#include "tests/fakes/real_clock.h"
#include "tests/trainer/comm/collective_contract.h"
#include "tests/trainer/comm/local_ranks.h"
#include "trainer/comm/meeting/peer_socket.h"
#include "trainer/comm/staged_collective.h"

namespace tidepool::trainer {
namespace socket_collective_test {

struct Form {
  uint32_t world;
  bool staged = false;  // as for memory of a device
};

void RunForm(const Form& form, const std::function<void(Collective&)>& body) {
  RunGroup(form.world, "form", [&](std::unique_ptr<Collective> group) {
    device::HostDevice device({.clock = RealClock()});
    if (form.staged) {
      auto staged = StagedCollective::Open(std::move(group), &device);
      ASSERT_TRUE(staged.ok()) << staged.status().Format();
      group = std::move(staged).value();
    }
    body(*group);
  });
}

class SocketsOfWorld : public ::testing::TestWithParam<Form> {};
INSTANTIATE_TEST_SUITE_P(Worlds, SocketsOfWorld,
                         ::testing::Values(Form{1}, Form{2}, Form{3}, Form{4}, Form{7},
                                           Form{2, true}, Form{3, true}));

TEST_P(SocketsOfWorld, GathersAllShardsInPlace) {
  RunForm(GetParam(), CollectiveContract::GathersAllShardsInPlace);
}

TEST_P(SocketsOfWorld, GathersTwoByteElements) {
  RunForm(GetParam(), CollectiveContract::GathersTwoByteElements);
}

TEST_P(SocketsOfWorld, ScattersTheSumInRankOrder) {
  RunForm(GetParam(), CollectiveContract::ScattersTheSumInRankOrder);
}

TEST_P(SocketsOfWorld, ScattersBf16Sums) {
  RunForm(GetParam(), CollectiveContract::ScattersBf16Sums);
}

TEST_P(SocketsOfWorld, ExchangesPartsOfAnySize) {
  RunForm(GetParam(), CollectiveContract::ExchangesPartsOfAnySize);
}

TEST_P(SocketsOfWorld, ExchangesNothing) {
  RunForm(GetParam(), CollectiveContract::ExchangesNothing);
}

TEST_P(SocketsOfWorld, TellsPartsThatDoNotFit) {
  RunForm(GetParam(), CollectiveContract::TellsPartsThatDoNotFit);
}

TEST_P(SocketsOfWorld, KeepsManyOperationsApart) {
  RunForm(GetParam(), CollectiveContract::KeepsManyOperationsApart);
}

TEST_P(SocketsOfWorld, SumsDoublesAlikeOnAllRanks) {
  std::vector<double> seen(GetParam().world);
  RunForm(GetParam(), [&](Collective& group) {
    seen[group.rank()] = CollectiveContract::SumsDoublesInRankOrder(group);
  });
  for (const double value : seen) EXPECT_EQ(value, seen[0]);
}

TEST_P(SocketsOfWorld, BroadcastsRankZerosBytes) {
  RunForm(GetParam(), CollectiveContract::BroadcastsRankZerosBytes);
}

// The sockets of one group of ranks, for collectives that the test makes itself.
class Wired {
 public:
  explicit Wired(uint32_t world) : ends_(world) {
    for (auto& row : ends_) row.resize(world);
    for (uint32_t low = 0; low < world; ++low) {
      for (uint32_t high = low + 1; high < world; ++high) {
        SocketPair pair = MakePair(SOCK_STREAM);
        ends_[low][high] = std::move(pair.ours);
        ends_[high][low] = std::move(pair.theirs);
      }
    }
  }

  UniqueFd& End(uint32_t rank, uint32_t to) { return ends_[rank][to]; }
  std::unique_ptr<SocketCollective> Make(uint32_t rank, int64_t timeout_ms = 60'000,
                                         std::function<Status()> doomed = {}) {
    return std::make_unique<SocketCollective>(SocketGroup{.name = "wired",
                                                          .rank = rank,
                                                          .members = std::move(ends_[rank]),
                                                          .clock = RealClock(),
                                                          .timeout_ms = timeout_ms,
                                                          .doomed = std::move(doomed)});
  }

 private:
  std::vector<std::vector<UniqueFd>> ends_;
};

BlockView ViewOf(std::vector<float>* block, uint32_t world) {
  return {block->data(), block->size() / world, DType::kF32};
}

// More than sockets hold, in both directions at once, several times.
TEST(SocketGroup, BlocksLargerThanAllBuffersPass) {
  RunGroup(3, "large", [](std::unique_ptr<Collective> group) {
    constexpr uint64_t kShard = 1'000'003;
    std::vector<float> gathered(3 * kShard),
        scattered(3 * kShard, static_cast<float>(group->rank() + 1));
    std::fill_n(gathered.begin() + group->rank() * kShard, kShard,
                static_cast<float>(group->rank() + 1));
    const auto first = group->StartAllGather(ViewOf(&gathered, 3));
    const auto second = group->StartReduceScatter(ViewOf(&scattered, 3));
    ASSERT_TRUE(group->Wait(second).ok());
    ASSERT_TRUE(group->Wait(first).ok());
    for (uint64_t i = 0; i < gathered.size(); ++i)
      ASSERT_EQ(gathered[i], static_cast<float>(i / kShard + 1)) << i;
    for (uint64_t i = 0; i < kShard; ++i)
      ASSERT_EQ(scattered[group->rank() * kShard + i], 6.F) << i;
  });
}

// Rank 1, which the test plays, sends all that it has and reads nothing until rank 0 takes nothing
// more.
TEST(SocketGroup, AddendsComeOnlyIntoPlacesOfWhatHasGone) {
  constexpr uint64_t kShard = 1'000'000;
  struct Header {  // as of ExchangeThread
    uint64_t magic = 0x4C45475F4C4F4F50, number = 1, bytes = kShard * sizeof(float);
    uint32_t rank = 1;
    OperationTag tag = TagOf(OperationKind::kReduceScatter, {});
  };
  Wired wired(2);
  const UniqueFd one = std::move(wired.End(1, 0));
  auto zero = wired.Make(0);
  std::vector<float> block(2 * kShard), theirs(kShard);
  std::iota(block.begin(), block.end(), 0.F);
  std::iota(theirs.begin(), theirs.end(), 0.5F);
  const auto ticket = zero->StartReduceScatter(ViewOf(&block, 2));

  const Header header;
  std::vector<std::byte> out(sizeof header + header.bytes), in(out.size());
  std::memcpy(out.data(), &header, sizeof header);
  std::memcpy(out.data() + sizeof header, theirs.data(), header.bytes);
  uint64_t sent = 0, got = 0;
  for (bool reads = false; sent < out.size() || got < in.size();) {
    const auto wanted =
        static_cast<int16_t>((sent < out.size() ? POLLOUT : 0) | (reads ? POLLIN : 0));
    pollfd polled{.fd = one.get(), .events = wanted, .revents = 0};
    const int ready = sent == out.size() && !reads ? 0 : poll(&polled, 1, reads ? 60'000 : 200);
    ASSERT_TRUE(ready == 1 || !reads);
    reads = reads || ready == 0;
    if ((polled.revents & POLLOUT) != 0) {
      const ssize_t n =
          send(one.get(), out.data() + sent, out.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n > 0) sent += static_cast<uint64_t>(n);
    }
    if ((polled.revents & POLLIN) != 0) {
      const ssize_t n = recv(one.get(), in.data() + got, in.size() - got, MSG_DONTWAIT);
      ASSERT_GT(n, 0);
      got += static_cast<uint64_t>(n);
    }
  }
  ASSERT_TRUE(zero->Wait(ticket).ok());
  const auto* gone = reinterpret_cast<const float*>(in.data() + sizeof header);
  for (uint64_t i = 0; i < kShard; ++i) {
    ASSERT_EQ(gone[i], static_cast<float>(kShard + i))
        << "what went to rank 1 was written over before";
    ASSERT_EQ(block[i], static_cast<float>(i) + theirs[i]);
  }
}

TEST(SocketGroup, SumsAreThereWhenAnOperationHasEnded) {
  RunGroup(3, "sums", [](std::unique_ptr<Collective> group) {
    std::vector<float> block(3 * 1000, static_cast<float>(group->rank() + 1));
    const auto ticket = group->StartReduceScatter(ViewOf(&block, 3));
    SteadyClock clock;
    while (!group->Test(ticket)) clock.SleepNs(kNsPerMs);
    for (uint64_t i = 0; i < 1000; ++i)
      ASSERT_EQ(block[group->rank() * 1000 + i], 6.F) << "before anybody waited";
    EXPECT_TRUE(group->Wait(ticket).ok());
  });
}

TEST(SocketGroup, AnOperationGoesOnWhileNobodyWaits) {
  RunGroup(2, "background", [](std::unique_ptr<Collective> group) {
    std::vector<float> block(2'000'000, static_cast<float>(group->rank()));
    const auto ticket = group->StartAllGather(ViewOf(&block, 2));
    SteadyClock clock;
    while (!group->Test(ticket)) clock.SleepNs(kNsPerMs);
    EXPECT_EQ(block.front(), 0.F);
    EXPECT_EQ(block.back(), 1.F);
    EXPECT_TRUE(group->Wait(ticket).ok());
  });
}

TEST(SocketErrors, ARankThatLeavesEndsTheOperationThatNeedsIt) {
  Wired wired(2);
  auto stays = wired.Make(0);
  std::vector<float> block(2000);
  const auto ticket = stays->StartAllGather(ViewOf(&block, 2));
  wired.Make(1).reset();
  const Status status = stays->Wait(ticket);
  EXPECT_EQ(status.id(), ErrorId::kCollectiveFailed);
  for (const char* part :
       {"all-gather in group 'wired'", "rank 0 of 2", "rank 1 of the group has left"}) {
    EXPECT_NE(status.Format().find(part), std::string::npos) << status.Format();
  }
  EXPECT_EQ(stays->Barrier().id(), ErrorId::kCollectiveFailed) << "it stays so";
}

// The others hear of it by the end of their connections to the rank that noticed.
TEST(SocketErrors, AGroupThatFailsOnOneRankFailsOnAll) {
  Wired wired(3);
  // Rank 1 may have had from rank 0 what it needs of it; then it waits for rank 2 to its own limit.
  auto zero = wired.Make(0), one = wired.Make(1, 1'000);
  wired.End(2, 0).Reset();  // rank 2 is dead for rank 0 only
  Status of_one;
  std::thread other([&] { of_one = one->Barrier(); });
  EXPECT_EQ(zero->Barrier().id(), ErrorId::kCollectiveFailed);
  other.join();
  EXPECT_EQ(of_one.id(), ErrorId::kCollectiveFailed);
}

// Rank 2's bytes for rank 0 pass through the test's hands.
TEST(SocketErrors, ARankThatLeavesBehindItsLastOperationDisturbsNobody) {
  Wired wired(3);
  SocketPair relay = MakePair(SOCK_STREAM);
  std::swap(relay.ours, wired.End(2, 0));  // what rank 2 sends to rank 0 is read at relay.theirs
  const UniqueFd to_zero = std::move(relay.ours);
  // They outlive the threads of the ranks, of which one is not waited for.
  std::vector<std::vector<float>> blocks(3, std::vector<float>(3 * 16, 1.F));
  std::vector<float> next(3 * 16);
  auto zero = wired.Make(0), one = wired.Make(1), two = wired.Make(2);

  const auto first = zero->StartAllGather(ViewOf(&blocks[0], 3));
  two->StartAllGather(ViewOf(&blocks[2], 3));
  ASSERT_TRUE(one->Wait(one->StartAllGather(ViewOf(&blocks[1], 3))).ok())
      << "it has all that it needs";
  one.reset();

  // Rank 0 finds that rank 1 has gone, in an operation that will need it, and tells rank 2 of that
  // operation: the second header.
  const auto second = zero->StartAllGather(ViewOf(&next, 3));
  constexpr size_t kTwoLegs = 2 * (32 + 16 * sizeof(float));
  for (size_t got = 0; got < kTwoLegs;) {
    std::array<char, 512> bytes;
    pollfd polled{.fd = to_zero.get(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(poll(&polled, 1, 60'000), 1);
    const ssize_t n = recv(to_zero.get(), bytes.data(), std::min(bytes.size(), kTwoLegs - got), 0);
    ASSERT_GT(n, 0) << "the group has failed too early";
    got += static_cast<size_t>(n);
  }

  // What rank 2 has to say in the first operation arrives late.
  std::array<char, 80 + 16 * sizeof(float)> late;
  pollfd polled{.fd = relay.theirs.get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(poll(&polled, 1, 60'000), 1);
  ASSERT_EQ(recv(relay.theirs.get(), late.data(), late.size(), 0),
            static_cast<ssize_t>(late.size()));
  ASSERT_EQ(send(to_zero.get(), late.data(), late.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(late.size()));
  const Status status = zero->Wait(first);
  EXPECT_TRUE(status.ok()) << status.Format();
  EXPECT_EQ(zero->Wait(second).id(), ErrorId::kCollectiveFailed);
}

TEST(SocketErrors, RanksInDifferentOperationsAreToldApart) {
  Wired wired(2);
  auto zero = wired.Make(0), one = wired.Make(1);
  std::vector<float> block(2000), other(2000);
  const auto gather = zero->StartAllGather(ViewOf(&block, 2));
  const auto scatter = one->StartReduceScatter(ViewOf(&other, 2));
  const Status status = zero->Wait(gather);
  EXPECT_EQ(status.id(), ErrorId::kCollectiveFailed);
  EXPECT_NE(status.Format().find("is in another operation"), std::string::npos) << status.Format();
  EXPECT_EQ(one->Wait(scatter).id(), ErrorId::kCollectiveFailed);
  for (const float value : block) ASSERT_EQ(value, 0.F) << "no byte of the other operation came in";
}

// Equal in kind and size, so that only their names tell them apart.
TEST(SocketErrors, RanksAtDifferentChunksAreToldWhichAndWhere) {
  Wired wired(2);
  auto zero = wired.Make(0), one = wired.Make(1);
  std::vector<float> block(2000), other(2000, 1.F);
  BlockView fifth = ViewOf(&block, 2), sixth = ViewOf(&other, 2);
  fifth.name = {.chunk = 5, .place = 12, .of = "h.3.mlp.up.weight"};
  sixth.name = {.chunk = 6, .place = 12, .of = "h.3.mlp.down.weight"};
  const auto of_zero = zero->StartAllGather(fifth);
  const auto of_one = one->StartAllGather(sixth);
  const Status status = zero->Wait(of_zero);
  EXPECT_EQ(status.id(), ErrorId::kCollectiveFailed);
  for (const char* part : {"all-gather of chunk 5 (h.3.mlp.up.weight), place 12 of its pass",
                           "rank 1 of the group is in another operation",
                           "all-gather of chunk 6 (h.3.mlp.down.weight), place 12 of its pass"}) {
    EXPECT_NE(status.Format().find(part), std::string::npos) << part << '\n' << status.Format();
  }
  EXPECT_EQ(one->Wait(of_one).id(), ErrorId::kCollectiveFailed);
  EXPECT_EQ(block[1500], 0.F) << "no byte of the other chunk came in";
}

TEST(SocketErrors, ARankThatNeverStartsRunsIntoTheTimeOutAndIsNamed) {
  Wired wired(3);
  auto zero = wired.Make(0, 200), one = wired.Make(1);
  static_cast<void>(one->StartAllGather({nullptr, 0, DType::kF32}));
  const Status status = zero->Wait(zero->StartAllGather({nullptr, 0, DType::kF32}));
  EXPECT_EQ(status.id(), ErrorId::kCollectiveFailed);
  EXPECT_NE(status.Format().find("waited for rank 2 of the group"), std::string::npos)
      << status.Format();
}

// The slot is lost: the operation ends with that, at once, though the peer lives.
TEST(SocketErrors, AnOperationThatCannotEndWellIsLeftWithTheReason) {
  Wired wired(2);
  auto zero = wired.Make(0, 60'000, [] { return Status(ErrorId::kPeerLost, "rank 1 is dead"); });
  auto one = wired.Make(1);
  std::vector<float> block(2000, 1.F);
  const auto ticket = zero->StartReduceScatter(ViewOf(&block, 2));
  EXPECT_EQ(zero->Wait(ticket).id(), ErrorId::kPeerLost);
  EXPECT_EQ(one->Barrier().id(), ErrorId::kCollectiveFailed);
}

TEST(SocketErrors, AGroupThatIsGivenUpFailsWithTheReason) {
  Wired wired(2);
  auto zero = wired.Make(0);
  std::vector<float> block(2000);
  const auto ticket = zero->StartAllGather(ViewOf(&block, 2));
  zero->GiveUp(Status(ErrorId::kStepAbandoned, "the step is given up"));
  EXPECT_TRUE(zero->Test(ticket));
  EXPECT_EQ(zero->Wait(ticket).id(), ErrorId::kStepAbandoned);
  EXPECT_EQ(zero->Barrier().id(), ErrorId::kStepAbandoned);
}

}  // namespace socket_collective_test
}  // namespace tidepool::trainer
