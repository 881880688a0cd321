#include "trainer/comm/gloo_collective.h"

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "device/host/host_device.h"
#include "tests/fakes/real_clock.h"
#include "tests/trainer/comm/collective_contract.h"
#include "tests/trainer/comm/counted_blocks.h"
#include "trainer/comm/meeting/done_keys.h"
#include "trainer/comm/meeting/rendezvous_store.h"
#include "trainer/comm/operation_thread.h"
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
        Rendezvous meet{.rank = rank, .world = world, .clock = RealClock()};
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
      device::HostDevice device({.clock = RealClock()});
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
INSTANTIATE_TEST_SUITE_P(Worlds, GlooOfWorld,
                         ::testing::Values(Form{1}, Form{2}, Form{3}, Form{4}, Form{2, true},
                                           Form{3, true}));

TEST_P(GlooOfWorld, GathersAllShardsInPlace) {
  Ranks::RunGroup(GetParam(), CollectiveContract::GathersAllShardsInPlace);
}

TEST_P(GlooOfWorld, GathersTwoByteElements) {
  Ranks::RunGroup(GetParam(), CollectiveContract::GathersTwoByteElements);
}

TEST_P(GlooOfWorld, ScattersTheSumInRankOrder) {
  Ranks::RunGroup(GetParam(), CollectiveContract::ScattersTheSumInRankOrder);
}

TEST_P(GlooOfWorld, ScattersBf16Sums) {
  Ranks::RunGroup(GetParam(), CollectiveContract::ScattersBf16Sums);
}

TEST_P(GlooOfWorld, ExchangesPartsOfAnySize) {
  Ranks::RunGroup(GetParam(), CollectiveContract::ExchangesPartsOfAnySize);
}

TEST_P(GlooOfWorld, ExchangesNothing) {
  Ranks::RunGroup(GetParam(), CollectiveContract::ExchangesNothing);
}

TEST_P(GlooOfWorld, TellsPartsThatDoNotFit) {
  Ranks::RunGroup(GetParam(), CollectiveContract::TellsPartsThatDoNotFit);
}

TEST_P(GlooOfWorld, KeepsManyOperationsApart) {
  Ranks::RunGroup(GetParam(), CollectiveContract::KeepsManyOperationsApart);
}

TEST_P(GlooOfWorld, SumsDoublesAlikeOnAllRanks) {
  std::vector<double> seen(GetParam().world);
  Ranks::RunGroup(GetParam(), [&](Collective& group) {
    seen[group.rank()] = CollectiveContract::SumsDoublesInRankOrder(group);
  });
  for (const double value : seen) EXPECT_EQ(value, seen[0]);
}

TEST_P(GlooOfWorld, BroadcastsRankZerosBytes) {
  Ranks::RunGroup(GetParam(), CollectiveContract::BroadcastsRankZerosBytes);
}

TEST(GlooGroups, OfSubsetsWorkBesideTheWholeRun) {
  Ranks::Run(4, [](RendezvousStore& store, const Rendezvous& meet) {
    auto all = store.MakeGroup(WholeRun(meet));
    ASSERT_TRUE(all.ok());
    const bool even = meet.rank % 2 == 0;
    auto half = store.MakeGroup(
        {even ? "even" : "odd", even ? std::vector<uint32_t>{0, 2} : std::vector<uint32_t>{1, 3}});
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

// Two runs at one store, as under one agent: the prefix has the run in it.
TEST(GlooMeetings, RunsOfAnotherNameDoNotMeet) {
  Rendezvous meet{.rank = 0, .world = 2, .clock = RealClock()};
  meet.prefix = "one";
  meet.gather_timeout_ms = 300;
  const auto first = RendezvousStore::Open(meet);
  ASSERT_TRUE(first.ok()) << first.status().Format();
  meet.rank = 1;
  meet.serves_store = false;
  meet.port = first.value()->port();
  meet.prefix = "other";
  const auto second = RendezvousStore::Open(meet);
  ASSERT_TRUE(second.ok()) << second.status().Format();
  EXPECT_EQ(second.value()->Gather().id(), ErrorId::kRanksMissing);
  EXPECT_EQ(first.value()->Gather().id(), ErrorId::kRanksMissing);
}

TEST(GlooMeetings, ARankWithAnotherSpecificationIsNamed) {
  std::atomic<int> refused{0};
  Ranks::Run(2, [&](RendezvousStore& first, const Rendezvous& own) {
    Rendezvous meet = own;
    meet.spec.bytes[0] = static_cast<std::byte>(own.rank);
    std::unique_ptr<RendezvousStore> another;
    if (own.rank == 1) another = RendezvousStore::Open(meet).value();
    const Status gathered = (another ? *another : first).Gather();
    EXPECT_EQ(gathered.id(), ErrorId::kJobMismatch) << gathered.Format();
    ++refused;
    SteadyClock clock;
    while (refused < 2) clock.SleepNs(kNsPerMs);
  });
}

TEST(GlooMeetings, AWaitForOtherRanksCanBeInterrupted) {
  Rendezvous meet{.rank = 0, .world = 2, .clock = RealClock()};
  int asked = 0;
  meet.interrupted = [&asked] {
    return ++asked < 3 ? Status() : Status(ErrorId::kPeerLost, "rank 1 is dead");
  };
  auto store = RendezvousStore::Open(meet);
  ASSERT_TRUE(store.ok()) << store.status().Format();
  EXPECT_EQ(store.value()->Gather().id(), ErrorId::kPeerLost);
  // So can the wait for the port, while nobody listens there.
  Rendezvous other{.rank = 1, .world = 2, .clock = RealClock()};
  other.port = store.value()->port();
  other.serves_store = false;
  other.interrupted = meet.interrupted;
  store.value().reset();
  asked = 0;
  EXPECT_EQ(RendezvousStore::Open(other).status().id(), ErrorId::kPeerLost);
}

TEST(DoneKeys, SayThatAllRanksAreDoneWhenEachHasSetItsOwn) {
  const auto agent = RendezvousStore::Open({.rank = 0, .world = 2, .clock = RealClock()});
  ASSERT_TRUE(agent.ok()) << agent.status().Format();
  Rendezvous meet{.rank = 0, .world = 2, .clock = RealClock()};
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

// All chunks of a model at once. (How many buffers are lent at a time is the operation thread's.)
TEST(GlooMemory, IsNoMoreThanTheEstimateCounts) {
  const ChunkLayout layout = LayoutOfSeveralSizes(2);
  const MemoryEstimate counted = EstimateMemory(layout, {.parts_at_once = kPartsAtOnce});
  Ranks::Run(2, [&](RendezvousStore& store, const Rendezvous& meet) {
    const auto made = store.MakeGroup(WholeRun(meet));
    ASSERT_TRUE(made.ok()) << made.status().Format();
    auto& group = dynamic_cast<GlooCollective&>(*made.value());
    EXPECT_EQ(group.part_bytes(), 0U);

    std::vector<std::vector<float>> blocks;
    std::vector<Collective::Ticket> tickets;
    for (ChunkId chunk = 0; chunk < layout.chunks.size(); ++chunk)
      blocks.emplace_back(layout.chunks[chunk].elements, 1.F);
    for (ChunkId chunk = 0; chunk < layout.chunks.size(); ++chunk) {
      tickets.push_back(group.StartReduceScatter(
          {blocks[chunk].data(), layout.ShardElements(chunk), DType::kF32}));
    }
    for (ChunkId chunk = 0; chunk < layout.chunks.size(); ++chunk) {
      ASSERT_TRUE(group.Wait(tickets[chunk]).ok());
      EXPECT_EQ(blocks[chunk][meet.rank * layout.ShardElements(chunk)], 2.F);
    }
    EXPECT_GT(group.part_bytes(), 0U);
    EXPECT_LE(group.part_bytes(), counted.parts_bytes);
  });
}

// By the next chunk, by the kind, and by the size: none may pair, hang, or end the process.
TEST(GlooErrors, RanksInDifferentOperationsAreToldApart) {
  const auto block_of = [](std::vector<float>* memory, uint32_t chunk) {
    BlockView view{memory->data(), memory->size() / 2, DType::kF32};
    view.name = {.chunk = chunk, .place = 3, .of = chunk == 5 ? "h.3.up" : "h.3.down"};
    return view;
  };
  for (const char* way : {"chunk", "kind", "size"}) {
    Ranks::Run(2, [&](RendezvousStore& store, const Rendezvous& meet) {
      auto group = std::move(store.MakeGroup(WholeRun(meet))).value();
      const std::string by = way;
      std::vector<float> memory(by == "size" && meet.rank == 1 ? 4000 : 2000, 7.F);
      const BlockView view = block_of(&memory, by == "chunk" && meet.rank == 1 ? 6 : 5);
      const auto ticket = by == "kind" && meet.rank == 1 ? group->StartReduceScatter(view)
                                                         : group->StartAllGather(view);
      const Status status = group->Wait(ticket);
      EXPECT_EQ(status.id(), ErrorId::kCollectiveFailed) << by;
      const std::string text = status.Format();
      EXPECT_NE(text.find("all-gather of chunk 5 (h.3.up), place 3 of its pass"), std::string::npos)
          << text;
      EXPECT_NE(text.find(by == "chunk"  ? "rank 1 in all-gather of chunk 6 (h.3.down)"
                          : by == "kind" ? "rank 1 in reduce-scatter of chunk 5"
                                         : "rank 0 sends 4000 bytes to rank 1, which expects 8000"),
                std::string::npos)
          << text;
      EXPECT_EQ(memory[1], 7.F) << "no byte came in";
      EXPECT_EQ(group->Barrier().id(), ErrorId::kCollectiveFailed) << "it stays so";
    });
  }
}

TEST(GlooErrors, APeerThatLeavesEndsTheOperation) {
  Ranks::Run(2, [](RendezvousStore& store, const Rendezvous& meet) {
    auto group = store.MakeGroup(WholeRun(meet));
    ASSERT_TRUE(group.ok());
    if (meet.rank == 1) return;  // its connections close
    std::vector<float> block(2000);
    const Status status =
        group.value()->Wait(group.value()->StartAllGather({block.data(), 1000, DType::kF32}));
    EXPECT_EQ(status.id(), ErrorId::kCollectiveFailed);
    EXPECT_NE(status.Format().find("rank 0 of 2"), std::string::npos) << status.Format();
    const Status later =
        group.value()->Wait(group.value()->StartReduceScatter({block.data(), 1000, DType::kF32}));
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
  Rendezvous meet{.rank = 1, .world = 2, .clock = RealClock()};
  meet.port = 1;  // nobody listens there
  meet.serves_store = false;
  meet.timeout_ms = 500;
  const auto store = RendezvousStore::Open(meet);
  EXPECT_EQ(store.status().id(), ErrorId::kRanksMissing);
  EXPECT_NE(store.status().what().find("127.0.0.1:1"), std::string::npos)
      << store.status().Format();
}

TEST(GlooErrors, APortInUseIsNamed) {
  Rendezvous meet{.rank = 0, .world = 2, .clock = RealClock()};
  auto first = RendezvousStore::Open(meet);
  ASSERT_TRUE(first.ok()) << first.status().Format();
  meet.port = first.value()->port();
  const auto second = RendezvousStore::Open(meet);
  EXPECT_EQ(second.status().id(), ErrorId::kCollectiveFailed);
  EXPECT_NE(second.status().Format().find("in use"), std::string::npos) << second.status().Format();
}

TEST(GlooErrors, ARankThatNeverJoinsIsNamed) {
  Rendezvous meet{.rank = 0, .world = 2, .clock = RealClock()};
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
