// The order in which copies on GPUs begin, in a serve loop: by need, by jobs' shares, and behind
// each root complex for itself. The GPUs are SlowDevices, so that the test says when a copy ends;
// what is counted is bytes and copies.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "device/host/host_device.h"
#include "device/places.h"
#include "device/topology.h"
#include "tests/fakes/real_clock.h"
#include "tests/fakes/serve_world.h"
#include "tests/fakes/slow_device.h"

namespace tidepool::memserver {
namespace copy_order_test {

constexpr uint64_t kAll = uint64_t{1} << 40;
constexpr uint64_t kElements = 1024;  // of a shard
constexpr uint64_t kBytes = 4 * kElements;
constexpr uint32_t kGpus = 3;

// Two GPUs behind one root complex, and one behind another; two copies fill a root complex.
class CopyOrderTest : public ::testing::Test {
 protected:
  static WorldOptions Options() {
    WorldOptions options;
    options.loop.gpu_copy_bytes = 2 * kBytes;
    return options;
  }
  CopyOrderTest() {
    for (uint32_t i = 0; i < kGpus; ++i)
      gpus_[i] = GpuOf(&slow_[i], world_.pool().mapped(), i < 2 ? "pci0000:15" : "pci0000:80");
  }
  // Ranks of one job, on these GPUs, with all weights in.
  std::vector<std::unique_ptr<FakeRank>> Join(const std::string& name,
                                              const std::vector<uint32_t>& gpus) {
    const auto world = static_cast<uint32_t>(gpus.size());
    const shm::JobSpec spec =
        MakeSpec({.name = name, .world = world, .chunks = 1, .chunk_elements = kElements * world});
    std::vector<std::unique_ptr<FakeRank>> ranks;
    for (Rank rank = 0; rank < world; ++rank) {
      world_.BringFrom(gpus_[gpus[rank]].get());
      ranks.push_back(world_.Join(spec, rank));
      EXPECT_NE(ranks.back(), nullptr);
    }
    for (Rank rank = 0; rank < world; ++rank) {
      ranks[rank]->Put(0, rank * kElements, kElements, 0);
      EndAll();
      EXPECT_EQ(ranks[rank]->Take()->error, 0U);
    }
    return ranks;
  }
  void EndAll() {
    world_.Settle();
    for (SlowDevice& slow : slow_) {
      while (slow.busy() > 0) slow.Move(0, kAll);
    }
    world_.Settle();
  }
  // The oldest copy on a GPU ends.
  void EndOne(uint32_t gpu) {
    slow_[gpu].Move(0, kAll);
    world_.Settle();
  }
  // A fetch that may begin at once.
  uint64_t Ask(FakeRank* rank, uint32_t uses_ahead) {
    shm::Request request = FakeRank::FetchRequest(0, rank->rank() * kElements, kElements, 0, 0);
    request.micro_batch = uses_ahead;
    const uint64_t counter = rank->Send(request);
    rank->flags().ready(counter)->store(counter);
    return counter;
  }
  CopyLane& LaneOf(const FakeRank& rank) {
    return world_.tables().FindSlot(rank.connection())->session->lane();
  }
  // Requests of the rank whose copies are in flight.
  std::set<uint64_t> Begun(const FakeRank& rank) {
    std::set<uint64_t> counters;
    for (uint32_t i = 0; i < LaneOf(rank).size(); ++i)
      counters.insert(LaneOf(rank).at(i).request.counter);
    return counters;
  }

  std::array<SlowDevice, kGpus> slow_;
  ServeWorld world_{Options()};
  std::array<std::unique_ptr<Gpu>, kGpus> gpus_;
};

using Counters = std::set<uint64_t>;

TEST_F(CopyOrderTest, ACopyThatARankWaitsForGoesBeforeThoseAskedForAhead) {
  const auto ranks = Join("job", {0, 0});
  const uint64_t far = Ask(ranks[0].get(), 3);
  Ask(ranks[0].get(), 4);
  const uint64_t farther = Ask(ranks[0].get(), 5);
  world_.Settle();
  EXPECT_EQ(Begun(*ranks[0]), (Counters{far, far + 1}));
  const uint64_t now = Ask(ranks[1].get(), 0);
  world_.Settle();
  EXPECT_TRUE(Begun(*ranks[1]).empty()) << "the GPU has two already";
  EndOne(0);
  EXPECT_EQ(Begun(*ranks[1]), Counters{now});
  EXPECT_FALSE(Begun(*ranks[0]).contains(farther));
  EndOne(0);
  EXPECT_TRUE(Begun(*ranks[0]).contains(farther)) << "nobody else has anything";
}

TEST_F(CopyOrderTest, OfOneRankTheNearestUseComesFirst) {
  const auto ranks = Join("job", {0});
  const uint64_t first = Ask(ranks[0].get(), 1);
  Ask(ranks[0].get(), 2);
  const uint64_t far = Ask(ranks[0].get(), 9), missed = Ask(ranks[0].get(), 0);
  world_.Settle();
  EXPECT_EQ(Begun(*ranks[0]), (Counters{first, missed}))
      << "the order was left: an operator stands still";
  EndOne(0);
  EXPECT_FALSE(Begun(*ranks[0]).contains(far));
}

TEST_F(CopyOrderTest, WhileARankStandsStillNoOtherGpuOfItsRootComplexIsGivenWorkInAdvance) {
  const auto ranks = Join("job", {0, 1});
  for (uint32_t uses = 10; uses < 14; ++uses) Ask(ranks[0].get(), uses);
  world_.Settle();
  EXPECT_EQ(slow_[0].busy(), 1U);
  EXPECT_EQ(LaneOf(*ranks[0]).size(), 2U);
  const uint64_t now = Ask(ranks[1].get(), 0);
  world_.Settle();
  EXPECT_EQ(Begun(*ranks[1]), Counters{now}) << "a GPU's engine has its next copy at once";
  EndOne(0);
  EXPECT_EQ(LaneOf(*ranks[0]).size(), 1U) << "more would take bandwidth from what is awaited";
  EndOne(1);
  EXPECT_EQ(LaneOf(*ranks[0]).size(), 2U);
}

TEST_F(CopyOrderTest, RootComplexesAndWaysAreEachForThemselves) {
  const auto ranks = Join("job", {0, 2});
  for (int i = 0; i < 4; ++i) Ask(ranks[0].get(), 0);
  world_.Settle();
  EXPECT_EQ(LaneOf(*ranks[0]).size(), 2U);
  for (uint32_t uses = 10; uses < 14; ++uses) Ask(ranks[1].get(), uses);
  world_.Settle();
  EXPECT_EQ(LaneOf(*ranks[1]).size(), 2U) << "behind the other root complex nobody is in a hurry";
  const uint64_t gradient = ranks[0]->Submit({0, 0, kElements, 0, 0, 0});
  ranks[0]->flags().ready(gradient)->store(gradient);
  world_.Settle();
  EXPECT_TRUE(Begun(*ranks[0]).contains(gradient));
}

TEST_F(CopyOrderTest, WhatWasAskedForAheadComesToBeAwaitedAsOthersBegin) {
  const auto ranks = Join("job", {0, 0});
  Ask(ranks[1].get(), 0);
  Ask(ranks[1].get(), 0);
  world_.Settle();
  const uint64_t ahead = Ask(ranks[0].get(), 3);
  uint32_t others = 0;
  for (; !Begun(*ranks[0]).contains(ahead) && others < 100; ++others) {
    Ask(ranks[1].get(), 0);
    EndOne(0);
  }
  EXPECT_EQ(others, 4U)
      << "three of its size, and the one that had been longer awaited when it was as well";
}

TEST_F(CopyOrderTest, AnyNumberOfUsesAheadIsTakenForFarAhead) {
  const auto ranks = Join("job", {0, 0});
  const uint64_t liar = Ask(ranks[0].get(), UINT32_MAX);
  world_.Settle();
  EXPECT_EQ(Begun(*ranks[0]), Counters{liar}) << "nobody else wants anything";
  EXPECT_EQ(LaneOf(*ranks[0]).AwaitedAt(LaneOf(*ranks[0]).at(0).request), kUsesAheadMax * kBytes);
}

// Who asks for everything at the last moment gets no more than who asks in time.
class SharesOfHaste : public CopyOrderTest {
 protected:
  // Each keeps 32 fetches waiting, on two GPUs of one root complex, until `copies` have ended; of
  // which so many were the first's.
  double Ratio(FakeRank* hasty, FakeRank* calm, uint64_t copies) {
    std::array<uint64_t, 2> ended{};
    const std::array<FakeRank*, 2> ranks{hasty, calm};
    while (ended[0] + ended[1] < copies) {
      for (size_t i = 0; i < 2; ++i) {
        for (; waiting_[i] < 32; ++waiting_[i]) Ask(ranks[i], i == 0 ? 0 : 2);
      }
      world_.loop().Turn();
      for (uint32_t gpu = 0; gpu < 2; ++gpu) {
        if (slow_[gpu].busy() > 0) slow_[gpu].Move(0, kAll);
      }
      world_.loop().Turn();
      for (size_t i = 0; i < 2; ++i) {
        while (ranks[i]->Take()) {
          --waiting_[i];
          ++ended[i];
        }
      }
    }
    return static_cast<double>(ended[0]) / static_cast<double>(ended[1]);
  }
  std::array<uint32_t, 2> waiting_{};
};

TEST_F(SharesOfHaste, BytesAreSharedByWeight) {
  const auto hasty = Join("hasty", {0}), calm = Join("calm", {0});
  EXPECT_NEAR(Ratio(hasty[0].get(), calm[0].get(), 8000), 1, 0.05);
  ASSERT_TRUE(world_.SetQuota("calm", {.weight = 2}).ok());
  EXPECT_NEAR(Ratio(hasty[0].get(), calm[0].get(), 8000), 0.5, 0.025);
}

TEST_F(SharesOfHaste, OfALowPriorityStillMove) {
  const auto high = Join("high", {0}), low = Join("low", {0});
  ASSERT_TRUE(world_.SetQuota("low", {.priority = Priority::kLow}).ok());
  const double ratio = Ratio(high[0].get(), low[0].get(), 8000);
  EXPECT_GT(ratio, 10);
  EXPECT_LT(ratio, 25) << "1/17 of all is promised";
}

// --- which root complex ---

TEST(PlaceOfAGpu, IsWhatTheMachineSaysAndElseItsOwn) {
  auto topology = device::ReadTopologyFile(TIDEPOOL_TOPOLOGIES "/two_sockets.xml");
  ASSERT_TRUE(topology.ok()) << topology.status().Format();
  auto places = device::PlanPlaces(topology.value(), {});
  ASSERT_TRUE(places.ok()) << places.status().Format();
  std::vector<device::Gpu> gpus;
  for (const char* address : {"0000:16:00.0", "0000:b8:00.0", "0000:42:00.0"}) {
    device::Gpu gpu;
    gpu.uuid = {static_cast<uint8_t>(gpus.size() + 1)};
    gpu.pci_address = address;
    gpus.push_back(gpu);
  }
  const auto open = [](const device::Gpu&) -> Result<OpenedGpu> {
    return OpenedGpu{.device = std::make_unique<device::HostDevice>(
                         device::HostDeviceOptions{.clock = RealClock()}),
                     .form_note = {}};
  };
  GpuTable table({.list = [gpus] { return Result<std::vector<device::Gpu>>(gpus); }, .open = open},
                 {}, places->staging);
  std::vector<std::string> roots;
  for (const device::Gpu& gpu : gpus) {
    auto opened = table.Open(gpu.uuid);
    ASSERT_TRUE(opened.ok()) << opened.status().Format();
    roots.push_back((*opened)->root_complex());
  }
  EXPECT_EQ(roots,
            (std::vector<std::string>{"pci0000:15", "pci0000:b7", device::Text(gpus[2].uuid)}));
}

// --- any requests, any order of ends ---

constexpr size_t kAskedMax = 6;  // of a rank, unanswered

struct Asked {
  uint32_t uses_ahead = 0;
  uint64_t clock = 0;  // of its root complex, when it came
};

class AnyCopies : public CopyOrderTest, public ::testing::WithParamInterface<uint64_t> {
 protected:
  struct Player {
    std::unique_ptr<FakeRank> rank;
    uint32_t gpu = 0;
    size_t job = 0;
    std::map<uint64_t, Asked> waiting;  // by counter; not begun
    std::set<uint64_t> begun;
  };
  void Play(Player* player) {
    if (player->waiting.size() + player->begun.size() >= kAskedMax) return;
    const auto uses = static_cast<uint32_t>(random_.Below(2) * random_.Below(5));
    const uint64_t clock = Way(*player).begun;
    player->waiting[Ask(player->rank.get(), uses)] = {uses, clock};
  }
  const RootWay& Way(const Player& player) {
    return LaneOf(*player.rank).gpu()->root().way(LaneWay::kToRcache);
  }
  static bool IsAwaited(const Asked& asked, uint64_t clock) {
    return asked.clock + asked.uses_ahead * kBytes <= clock;
  }
  // Looks at what has begun since the last look; `before`: the clocks of then, by GPU.
  void Look(const std::array<uint64_t, kGpus>& before) {
    for (Player& player : players_) {
      for (const uint64_t counter : Begun(*player.rank)) {
        if (!player.begun.insert(counter).second) continue;
        const auto found = player.waiting.find(counter);
        ASSERT_NE(found, player.waiting.end());
        const Asked asked = found->second;
        player.waiting.erase(found);
        longest_ = std::max(
            longest_, before[player.gpu] - asked.clock -
                          std::min(before[player.gpu] - asked.clock, asked.uses_ahead * kBytes));
        if (!IsAwaited(asked, Way(player).begun)) ExpectNobodyAwaits(player);
      }
      while (const auto answer = player.rank->Take()) {
        ASSERT_EQ(answer->error, 0U);
        ASSERT_EQ(player.begun.erase(answer->counter), 1U);
        ++ended_;
      }
      for (const auto& [counter, asked] : player.waiting) {
        EXPECT_FALSE(LaneOf(*player.rank)
                         .gpu()
                         ->HasRoom(LaneWay::kToRcache, IsAwaited(asked, Way(player).begun)))
            << "a GPU with room has nothing to do";
      }
    }
  }
  // In its job, on its GPU: one of them would have gone first.
  void ExpectNobodyAwaits(const Player& other) {
    for (const Player& player : players_) {
      if (player.job != other.job || player.gpu != other.gpu) continue;
      for (const auto& [counter, asked] : player.waiting)
        EXPECT_FALSE(IsAwaited(asked, Way(player).begun)) << counter;
    }
  }

  SplitMix64 random_{GetParam()};
  std::vector<Player> players_;
  uint64_t ended_ = 0;
  uint64_t longest_ = 0;  // bytes that began since a request was awaited, before it
};

TEST_P(AnyCopies, AllBeginInABoundedTimeAndNoneBeforeOneThatIsMoreUrgent) {
  const std::vector<std::vector<uint32_t>> jobs{{0, 1, 0}, {1, 2}, {0, 2, 1}};
  for (size_t job = 0; job < jobs.size(); ++job) {
    auto ranks = Join("job" + std::to_string(job), jobs[job]);
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      players_.push_back({.rank = std::move(ranks[rank]),
                          .gpu = jobs[job][rank],
                          .job = job,
                          .waiting = {},
                          .begun = {}});
      players_.back().rank->Take();
    }
  }
  for (int action = 0; action < 3000; ++action) {
    std::array<uint64_t, kGpus> before{};
    for (const Player& player : players_) before[player.gpu] = Way(player).begun;
    if (random_.Below(3) != 0) {
      Play(&players_[random_.Below(players_.size())]);
    } else if (SlowDevice& slow = slow_[random_.Below(kGpus)]; slow.busy() > 0) {
      slow.Move(0, random_.Below(2) == 0 ? kAll : kBytes / 3);
    }
    world_.Settle();
    Look(before);
    if (HasFailure()) return;
  }
  EXPECT_GT(ended_, 500U);
  // Behind a root complex there are at most kAskedMax of each rank, and a job that has gone before
  // owes at most two rounds of a quantum.
  const uint64_t rounds = 2 * jobs.size() * (FairShare::kQuantum / (kBytes + kRequestCost) + 1);
  EXPECT_LE(longest_, (players_.size() * kAskedMax + rounds) * kBytes);
}

INSTANTIATE_TEST_SUITE_P(Seeds, AnyCopies, ::testing::Range<uint64_t>(0, 8));

}  // namespace copy_order_test
}  // namespace tidepool::memserver
