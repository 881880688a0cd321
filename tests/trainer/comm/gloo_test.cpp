#include "trainer/comm/gloo_collective.h"

#include <atomic>
#include <bit>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "device/host_device.h"
#include "trainer/comm/done_keys.h"
#include "trainer/comm/staged_collective.h"

namespace tidepool::trainer {
namespace gloo_test {

struct Form {
  uint32_t world;
  bool staged = false;  // as for memory of a device
};

// Ranks are threads of this process, each with a store connection and groups of its own.
class Ranks {
 public:
  using Body = std::function<void(RendezvousStore&, const Rendezvous&)>;

  static void Run(uint32_t world, const Body& body, int64_t timeout_ms = 20'000) {
    std::atomic<int> port{0};
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < world; ++rank) {
      threads.emplace_back([&, rank] {
        SteadyClock clock;
        while (rank != 0 && port.load() == 0) clock.SleepNs(kNsPerMs);
        if (port.load() < 0) return;
        Rendezvous meet{.rank = rank, .world = world};
        meet.port = static_cast<uint16_t>(port.load());
        meet.serves_store = rank == 0;
        meet.timeout_ms = timeout_ms;
        auto store = RendezvousStore::Open(meet);
        if (rank == 0) port.store(store.ok() && world > 1 ? store.value()->port() : -1);
        ASSERT_TRUE(store.ok()) << store.status().Format();
        body(*store.value(), meet);
      });
    }
    for (auto& thread : threads) thread.join();
  }

  // Makes the group of all ranks for `body`.
  static void RunGroup(const Form& form, const std::function<void(Collective&)>& body) {
    const uint32_t world = form.world;
    Run(world, [&](RendezvousStore& store, const Rendezvous& meet) {
      device::HostDevice device({});
      auto group = store.MakeGroup(WholeRun(meet));
      ASSERT_TRUE(group.ok()) << group.status().Format();
      if (form.staged) {
        auto staged = StagedCollective::Open(std::move(group).value(), &device);
        ASSERT_TRUE(staged.ok()) << staged.status().Format();
        group = std::unique_ptr<Collective>(std::move(staged).value());
      }
      ASSERT_EQ(group.value()->world(), world);
      ASSERT_EQ(group.value()->rank(), meet.rank);
      body(*group.value());
    });
  }
};

class GlooOfWorld : public ::testing::TestWithParam<Form> {};
INSTANTIATE_TEST_SUITE_P(Worlds, GlooOfWorld, ::testing::Values(Form{1}, Form{2}, Form{3}, Form{4}, Form{2, true}, Form{3, true}));

float ValueOf(uint32_t rank, uint64_t i) {
  return static_cast<float>(rank * 1000) + static_cast<float>(i % 251) * 0.25F;
}

TEST_P(GlooOfWorld, GathersAllShardsInPlace) {
  Ranks::RunGroup(GetParam(), [](Collective& group) {
    const uint64_t shard = 10'007;
    std::vector<float> block(group.world() * shard, -1.F);
    for (uint64_t i = 0; i < shard; ++i) block[group.rank() * shard + i] = ValueOf(group.rank(), i);
    ASSERT_TRUE(group.Wait(group.StartAllGather({block.data(), shard, DType::kF32})).ok());
    for (uint32_t rank = 0; rank < group.world(); ++rank) {
      for (uint64_t i = 0; i < shard; ++i) ASSERT_EQ(block[rank * shard + i], ValueOf(rank, i)) << rank << ' ' << i;
    }
  });
}

TEST_P(GlooOfWorld, GathersTwoByteElements) {
  Ranks::RunGroup(GetParam(), [](Collective& group) {
    std::vector<uint16_t> block(group.world() * 3, 0);
    for (uint32_t i = 0; i < 3; ++i) block[group.rank() * 3 + i] = static_cast<uint16_t>(group.rank() * 3 + i + 1);
    ASSERT_TRUE(group.Wait(group.StartAllGather({block.data(), 3, DType::kBF16})).ok());
    for (uint32_t i = 0; i < block.size(); ++i) ASSERT_EQ(block[i], i + 1);
  });
}

TEST_P(GlooOfWorld, ScattersTheSumInRankOrder) {
  Ranks::RunGroup(GetParam(), [](Collective& group) {
    // Thirds are inexact, so another order of addition would show in the last bit.
    const auto addend = [](uint32_t rank, uint64_t i) { return (static_cast<float>(i % 911) + 1.F) / (static_cast<float>(rank) + 3.F); };
    const uint64_t shard = 4'099;
    std::vector<float> block(group.world() * shard);
    for (uint64_t i = 0; i < block.size(); ++i) block[i] = addend(group.rank(), i);
    ASSERT_TRUE(group.Wait(group.StartReduceScatter({block.data(), shard, DType::kF32})).ok());
    for (uint64_t i = group.rank() * shard; i < (group.rank() + 1) * shard; ++i) {
      float sum = addend(0, i);
      for (uint32_t rank = 1; rank < group.world(); ++rank) sum += addend(rank, i);
      ASSERT_EQ(block[i], sum) << i;
    }
  });
}

TEST_P(GlooOfWorld, ScattersBf16Sums) {
  Ranks::RunGroup(GetParam(), [](Collective& group) {
    const uint64_t shard = 33;
    const auto bf16 = [](float value) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16); };
    std::vector<uint16_t> block(group.world() * shard);
    for (uint64_t i = 0; i < block.size(); ++i) block[i] = bf16(static_cast<float>(i % 8 + group.rank()));  // exact in bf16
    ASSERT_TRUE(group.Wait(group.StartReduceScatter({block.data(), shard, DType::kBF16})).ok());
    for (uint64_t i = group.rank() * shard; i < (group.rank() + 1) * shard; ++i) {
      const uint32_t world = group.world();
      ASSERT_EQ(block[i], bf16(static_cast<float>(world * (i % 8) + world * (world - 1) / 2)));
    }
  });
}

TEST_P(GlooOfWorld, KeepsManyOperationsApart) {
  Ranks::RunGroup(GetParam(), [](Collective& group) {
    constexpr uint32_t kOperations = 24;
    const uint64_t shard = 2'000;
    std::vector<std::vector<float>> blocks(kOperations, std::vector<float>(group.world() * shard, 1.F));
    std::vector<Collective::Ticket> tickets;
    for (uint32_t k = 0; k < kOperations; ++k) {
      const BlockView view{blocks[k].data(), shard, DType::kF32};
      if (k % 2 == 0) {
        std::fill_n(blocks[k].begin() + group.rank() * shard, shard, static_cast<float>(k * 10 + group.rank()));
        tickets.push_back(group.StartAllGather(view));
      } else {
        std::fill(blocks[k].begin(), blocks[k].end(), static_cast<float>(k));
        tickets.push_back(group.StartReduceScatter(view));
      }
    }
    SteadyClock clock;
    while (!group.Test(tickets.back())) clock.SleepNs(kNsPerMs);
    for (const auto ticket : tickets) ASSERT_TRUE(group.Test(ticket));  // the last one ends last
    for (uint32_t k = kOperations; k-- > 0;) {
      ASSERT_TRUE(group.Wait(tickets[k]).ok());
      for (uint32_t rank = 0; k % 2 == 0 && rank < group.world(); ++rank) ASSERT_EQ(blocks[k][rank * shard + 7], k * 10 + rank);
      if (k % 2 == 1) {
        ASSERT_EQ(blocks[k][group.rank() * shard + 7], k * group.world());
      }
    }
  });
}

TEST_P(GlooOfWorld, SumsDoublesAlikeOnAllRanks) {
  std::vector<double> seen(GetParam().world);
  Ranks::RunGroup(GetParam(), [&](Collective& group) {
    double values[3] = {1.0 / (group.rank() + 3.0), 2.0, static_cast<double>(group.rank())};
    ASSERT_TRUE(group.SumDoubles(values, 3).ok());
    seen[group.rank()] = values[0];
    EXPECT_EQ(values[1], 2.0 * group.world());
    EXPECT_EQ(values[2], group.world() * (group.world() - 1) / 2.0);
  });
  for (const double value : seen) EXPECT_EQ(value, seen[0]);
}

TEST_P(GlooOfWorld, BroadcastsRankZerosBytes) {
  Ranks::RunGroup(GetParam(), [](Collective& group) {
    char text[6] = "other";
    if (group.rank() == 0) std::memcpy(text, "zero!", 6);
    ASSERT_TRUE(group.Broadcast(text, sizeof(text)).ok());
    EXPECT_STREQ(text, "zero!");
    EXPECT_TRUE(group.Barrier().ok());
    EXPECT_TRUE(group.Broadcast(nullptr, 0).ok());
    const auto nothing = group.StartAllGather({nullptr, 0, DType::kF32});
    EXPECT_TRUE(group.Wait(nothing).ok());
  });
}

TEST(GlooGroups, OfSubsetsWorkBesideTheWholeRun) {
  Ranks::Run(4, [](RendezvousStore& store, const Rendezvous& meet) {
    auto all = store.MakeGroup(WholeRun(meet));
    ASSERT_TRUE(all.ok());
    const bool even = meet.rank % 2 == 0;
    auto half = store.MakeGroup({even ? "even" : "odd", even ? std::vector<uint32_t>{0, 2} : std::vector<uint32_t>{1, 3}});
    ASSERT_TRUE(half.ok());
    auto alone = store.MakeGroup({"alone" + std::to_string(meet.rank), {meet.rank}});
    ASSERT_TRUE(alone.ok());
    EXPECT_EQ(half.value()->rank(), meet.rank / 2);
    EXPECT_EQ(alone.value()->world(), 1U);
    double in_half = meet.rank, in_all = meet.rank;
    ASSERT_TRUE(half.value()->SumDoubles(&in_half, 1).ok());
    ASSERT_TRUE(all.value()->SumDoubles(&in_all, 1).ok());
    EXPECT_EQ(in_half, even ? 2 : 4);
    EXPECT_EQ(in_all, 6);
  });
}

// Rank 1 leaves and comes back with a new connection, twice; rank 0 stays with its store.
TEST(GlooMeetings, RanksMeetAgainAtTheSameStore) {
  std::atomic<int> disbanded{0};
  Ranks::Run(2, [&](RendezvousStore& first, const Rendezvous& meet) {
    SteadyClock clock;
    for (int meeting = 0; meeting < 3; ++meeting) {
      // Nobody gathers before all have left the meeting before.
      while (disbanded.load() < 2 * meeting) clock.SleepNs(kNsPerMs);
      std::unique_ptr<RendezvousStore> again;
      if (meet.rank == 1 && meeting > 0) again = RendezvousStore::Open(meet).value();
      RendezvousStore& store = again ? *again : first;
      const Status gathered = store.Gather();
      ASSERT_TRUE(gathered.ok()) << gathered.Format();
      auto group = store.MakeGroup(WholeRun(meet));
      ASSERT_TRUE(group.ok()) << group.status().Format();
      double sum = 1 + meet.rank + 10 * meeting;
      ASSERT_TRUE(group.value()->SumDoubles(&sum, 1).ok());
      EXPECT_EQ(sum, 3 + 20 * meeting);
      group.value().reset();
      store.Disband();
      ++disbanded;
    }
  });
}

TEST(GlooMeetings, AWaitForOtherRanksCanBeInterrupted) {
  Rendezvous meet{.rank = 0, .world = 2};
  int asked = 0;
  meet.interrupted = [&asked] { return ++asked < 3 ? Status() : Status(ErrorId::kPeerLost, "rank 1 is dead"); };
  auto store = RendezvousStore::Open(meet);
  ASSERT_TRUE(store.ok()) << store.status().Format();
  EXPECT_EQ(store.value()->Gather().id(), ErrorId::kPeerLost);
  // So can the wait for the port, while nobody listens there.
  Rendezvous other{.rank = 1, .world = 2};
  other.port = store.value()->port();
  other.serves_store = false;
  other.interrupted = meet.interrupted;
  store.value().reset();
  asked = 0;
  EXPECT_EQ(RendezvousStore::Open(other).status().id(), ErrorId::kPeerLost);
}

TEST(DoneKeys, SayThatAllRanksAreDoneWhenEachHasSetItsOwn) {
  const auto agent = RendezvousStore::Open({.rank = 0, .world = 2});
  ASSERT_TRUE(agent.ok()) << agent.status().Format();
  Rendezvous meet{.rank = 0, .world = 2};
  meet.port = agent.value()->port();
  const DoneKeys zero(meet, "j"), other_job(meet, "k");
  meet.rank = 1;
  const DoneKeys one(meet, "j");
  EXPECT_FALSE(zero.AllSet());
  zero.Set();
  EXPECT_FALSE(one.AllSet());
  one.Set();
  EXPECT_TRUE(zero.AllSet() && one.AllSet());
  EXPECT_FALSE(other_job.AllSet());
  one.Clear();
  EXPECT_FALSE(zero.AllSet());
}

TEST(GlooErrors, APeerThatLeavesEndsTheOperation) {
  Ranks::Run(2, [](RendezvousStore& store, const Rendezvous& meet) {
    auto group = store.MakeGroup(WholeRun(meet));
    ASSERT_TRUE(group.ok());
    if (meet.rank == 1) return;  // its connections close
    std::vector<float> block(2000);
    const Status status = group.value()->Wait(group.value()->StartAllGather({block.data(), 1000, DType::kF32}));
    EXPECT_EQ(status.id(), ErrorId::kCollectiveFailed);
    EXPECT_NE(status.Format().find("rank 0 of 2"), std::string::npos) << status.Format();
    const Status later = group.value()->Wait(group.value()->StartReduceScatter({block.data(), 1000, DType::kF32}));
    EXPECT_EQ(later.id(), ErrorId::kCollectiveFailed);
  });
}

TEST(GlooErrors, APeerThatNeverStartsRunsIntoTheTimeOut) {
  std::atomic<bool> rank0_done{false};
  Ranks::Run(
      2,
      [&](RendezvousStore& store, const Rendezvous& meet) {
        auto group = store.MakeGroup(WholeRun(meet));
        ASSERT_TRUE(group.ok()) << group.status().Format();
        SteadyClock clock;
        if (meet.rank == 0) {
          EXPECT_EQ(group.value()->Barrier().id(), ErrorId::kCollectiveFailed);
          rank0_done = true;
        }
        while (!rank0_done) clock.SleepNs(kNsPerMs);
      },
      1'000);
}

TEST(GlooErrors, AMissingMasterIsNamed) {
  Rendezvous meet{.rank = 1, .world = 2};
  meet.port = 1;  // nobody listens there
  meet.serves_store = false;
  meet.timeout_ms = 500;
  const auto store = RendezvousStore::Open(meet);
  EXPECT_EQ(store.status().id(), ErrorId::kRanksMissing);
  EXPECT_NE(store.status().what().find("127.0.0.1:1"), std::string::npos) << store.status().Format();
}

TEST(GlooErrors, APortInUseIsNamed) {
  Rendezvous meet{.rank = 0, .world = 2};
  auto first = RendezvousStore::Open(meet);
  ASSERT_TRUE(first.ok()) << first.status().Format();
  meet.port = first.value()->port();
  const auto second = RendezvousStore::Open(meet);
  EXPECT_EQ(second.status().id(), ErrorId::kCollectiveFailed);
  EXPECT_NE(second.status().Format().find("in use"), std::string::npos) << second.status().Format();
}

TEST(GlooErrors, ARankThatNeverJoinsIsNamed) {
  Rendezvous meet{.rank = 0, .world = 2};
  meet.timeout_ms = 500;
  meet.gather_timeout_ms = 300;
  auto store = RendezvousStore::Open(meet);
  ASSERT_TRUE(store.ok()) << store.status().Format();
  const Status gathered = store.value()->Gather();
  EXPECT_EQ(gathered.id(), ErrorId::kRanksMissing);
  EXPECT_NE(gathered.what().find("rank 1 did not come"), std::string::npos) << gathered.Format();
  const auto group = store.value()->MakeGroup(WholeRun(meet));
  EXPECT_EQ(group.status().id(), ErrorId::kCollectiveFailed);
}

}  // namespace gloo_test
}  // namespace tidepool::trainer
