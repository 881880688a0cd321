// The plan of places for machines described by hand.
#include "device/places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "base/units.h"

namespace tidepool::device {
namespace places_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Topology Described(const std::string& name) {
  auto topology = ReadTopologyFile(std::string(TIDEPOOL_TOPOLOGIES) + "/" + name);
  EXPECT_TRUE(topology.ok()) << topology.status().Format();
  return topology.ok() ? *topology : Topology{.source = "", .nodes = {NumaNode{}}, .roots = {}};
}

Places Planned(const Topology& topology, const PlaceWishes& wishes) {
  auto places = PlanPlaces(topology, wishes);
  EXPECT_TRUE(places.ok()) << places.status().Format();
  return places.ok() ? *places : Places{};
}

TEST(Places, WorkersGoRoundTheSocketsOneACoreAndLeaveTheFirstCpu) {
  const Topology machine = Described("two_sockets.xml");
  const Places four = Planned(machine, {.pool_nodes = {}, .worker_cpus = {}, .workers = 4});
  EXPECT_THAT(four.pool_nodes, ElementsAre(0, 1));
  EXPECT_TRUE(four.bind_pool);
  EXPECT_THAT(four.WorkerCpus(), ElementsAre(3, 7, 2, 6));
  EXPECT_EQ(four.workers[0].node, 0u);
  EXPECT_EQ(four.workers[1].node, 1u);
  // 15 of 16: every CPU but the first, and no core twice before each had one (CPU 0's core is the
  // loop's).
  const Places most = Planned(machine, {.pool_nodes = {}, .worker_cpus = {}, .workers = 15});
  const std::vector<uint32_t> cpus = most.WorkerCpus();
  ASSERT_EQ(cpus.size(), 15u);
  EXPECT_EQ(std::set<uint32_t>(cpus.begin(), cpus.end()).size(), 15u);
  EXPECT_THAT(cpus, ::testing::Not(::testing::Contains(0u)));
  for (size_t i = 0; i < 7; ++i) EXPECT_LT(cpus[i], 8u) << "worker " << i << " shares a core";
}

TEST(Places, WithoutACpuToSpareNobodyIsPinned) {
  EXPECT_TRUE(
      Planned(Described("two_sockets.xml"), {.pool_nodes = {}, .worker_cpus = {}, .workers = 16})
          .workers.empty());
  EXPECT_TRUE(Planned(Described("two_sockets.xml"),
                      {.pool_nodes = {}, .worker_cpus = {}, .workers = 2, .pin = false})
                  .workers.empty());
}

TEST(Places, WishesWinOverTheRules) {
  const Topology machine = Described("two_sockets.xml");
  const Places places =
      Planned(machine, {.pool_nodes = {1}, .worker_cpus = {4, 12}, .workers = 3, .pin = false});
  EXPECT_THAT(places.pool_nodes, ElementsAre(1));
  EXPECT_THAT(places.WorkerCpus(), ElementsAre(4, 12, 4));
  // The pool on one node: workers stay on it while it has CPUs.
  const Places near = Planned(machine, {.pool_nodes = {1}, .worker_cpus = {}, .workers = 9});
  for (size_t i = 0; i < 9; ++i) EXPECT_EQ(near.workers[i].node, i < 8 ? 1u : 0u) << i;
}

TEST(Places, WhatIsNotThereIsRefusedWithWhatIs) {
  const Topology machine = Described("two_sockets.xml");
  const auto node = PlanPlaces(machine, {.pool_nodes = {0, 7}, .worker_cpus = {}, .workers = 1});
  EXPECT_EQ(node.status().id(), ErrorId::kConfigBadValue);
  EXPECT_THAT(node.status().Format(), HasSubstr("node 7"));
  EXPECT_THAT(node.status().why(), HasSubstr("0-1"));
  const auto cpu = PlanPlaces(machine, {.pool_nodes = {}, .worker_cpus = {16}, .workers = 1});
  EXPECT_EQ(cpu.status().id(), ErrorId::kConfigBadValue);
  EXPECT_THAT(cpu.status().Format(), HasSubstr("CPU 16"));
  EXPECT_THAT(cpu.status().why(), HasSubstr("0-3,8-11,4-7,12-15"));
}

TEST(Places, EachGpuStagesOnTheNodeOfItsRootComplex) {
  const Places places =
      Planned(Described("two_sockets.xml"), {.pool_nodes = {}, .worker_cpus = {}, .workers = 1});
  ASSERT_EQ(places.staging.size(), 3u);
  for (const auto& [at, address, node] :
       {std::tuple{0u, "0000:16:00.0", 0u}, {1u, "0000:81:00.0", 1u}, {2u, "0000:b8:00.0", 1u}}) {
    EXPECT_EQ(places.staging[at].gpu.address, address);
    EXPECT_EQ(places.staging[at].node, node) << address;
    EXPECT_TRUE(places.staging[at].nearest) << address;
  }
  const Places silent =
      Planned(Described("silent_board.xml"), {.pool_nodes = {1}, .worker_cpus = {}, .workers = 1});
  ASSERT_EQ(silent.staging.size(), 1u);
  EXPECT_FALSE(silent.staging[0].nearest);
  EXPECT_EQ(silent.staging[0].node, 1u) << "unknown: beside the pool";
}

TEST(Places, MemoryWithoutCpusIsUsedOnlyOnRequest) {
  const Topology machine = Described("silent_board.xml");
  EXPECT_THAT(Planned(machine, {.pool_nodes = {}, .worker_cpus = {}, .workers = 1}).pool_nodes,
              ElementsAre(0, 1));
  EXPECT_THAT(Planned(machine, {.pool_nodes = {2}, .worker_cpus = {}, .workers = 1}).pool_nodes,
              ElementsAre(2));
}

TEST(Places, PiecesShareAPoolEvenlyOverTheNodes) {
  Places places{.pool_nodes = {0, 1},
                .bind_pool = true,
                .spread = PoolSpread::kPieces,
                .workers = {},
                .staging = {}};
  EXPECT_EQ(places.PieceBytes(10 * kGiB, 64 * kGiB), 5 * kGiB);
  EXPECT_EQ(places.PieceBytes(10 * kGiB + kPageBytes, 64 * kGiB), 5 * kGiB + 2 * kMiB)
      << "whole huge pages";
  EXPECT_EQ(places.PieceBytes(1024 * kGiB, 64 * kGiB), 64 * kGiB)
      << "no piece is larger than one registration takes";
  EXPECT_THAT(places.NodesOfPiece(0), ElementsAre(0));
  EXPECT_THAT(places.NodesOfPiece(3), ElementsAre(1));
  places.spread = PoolSpread::kInterleave;
  EXPECT_EQ(places.PieceBytes(10 * kGiB, 64 * kGiB), 64 * kGiB);
  EXPECT_THAT(places.NodesOfPiece(3), ElementsAre(0, 1));
}

}  // namespace places_test
}  // namespace tidepool::device
