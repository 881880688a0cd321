// What a turn of the loop does for a job with a long list of frozen chunks: those that it lists, or
// lets go of, are counted, and no turn goes through all of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/formats/content_hash.h"
#include "base/point.h"
#include "shm/spec/state_bytes.h"
#include "tests/fakes/point_hits.h"
#include "tests/fakes/serve_world.h"

namespace tidepool::memserver {
namespace frozen_list_test {

// A job over many frozen chunks comes and goes; no turn goes through all of them.
class FrozenListOfAJob : public ::testing::Test {
 protected:
  static constexpr uint32_t kListed = 4 * FrozenTable::kRowsPerTurn + 100;
  static constexpr uint64_t kExtent = 2 * kPageBytes;  // of a chunk, with the page before it
  static constexpr uint32_t kAlice = 1000, kBob = 1001;

  static shm::JobSpec Listing(const std::string& name, uint64_t contents) {
    shm::JobSpec spec = MakeSpec({.name = name});
    for (uint64_t i = 0; i < kListed; ++i) {
      const uint64_t content[] = {contents, i};
      spec.frozen.push_back({16, spec.dtype, HashOf(std::as_bytes(std::span(content)))});
    }
    return spec;
  }
  static WorldOptions Options(uint64_t room_besides = 8 * kMiB) {
    WorldOptions options = WithLease();
    options.pool_bytes =
        shm::StateBytesOf(Listing("alice", 1)).total() + kListed * kExtent + room_besides;
    return options;
  }
  void Begin(const WorldOptions& options = Options()) {
    world_ = std::make_unique<ServeWorld>(options);
    world_->Reserve(Listing("alice", 1), 0, kAlice);
    world_->loop().Turn();
    const auto granted = world_->TakeReply<ReserveGranted>();
    ASSERT_TRUE(granted) << "memory is zeroed meanwhile";
    ASSERT_TRUE(table().promised_bytes() > 0);
    rank_ = world_->Attach(*granted, 0);
  }
  const FrozenTable& table() { return *world_->tables().frozen; }
  const Job* job() { return world_->tables().FindJob("alice"); }
  // The most hits of the point in a turn, until the loop is at rest.
  uint64_t MostHits(std::string_view point) {
    const PointHits hits(point);
    uint64_t most = 0;
    for (int idle = 0; idle < 2;) {
      const uint64_t before = hits.count();
      idle = world_->loop().Turn() ? 0 : idle + 1;
      most = std::max(most, hits.count() - before);
    }
    return most;
  }
  void ExpectNothingLeft() {
    world_->Settle();
    EXPECT_TRUE(world_->tables().jobs.empty());
    EXPECT_EQ(world_->pool().free_bytes(), world_->pool().total_bytes());
    EXPECT_EQ(table().promised_bytes(), 0U);
    EXPECT_TRUE(table().leaving().empty());
  }

  std::unique_ptr<ServeWorld> world_;
  std::unique_ptr<FakeRank> rank_;
};

TEST_F(FrozenListOfAJob, IsTakenAndLetGoInSlices) {
  Begin();
  const uint64_t most = MostHits("server.frozen_listed");
  EXPECT_GT(most, 0U);
  EXPECT_LE(most, 2 * (FrozenTable::kRowsPerTurn + 1)) << "and again where a rank attaches";
  EXPECT_EQ(table().chunks().size(), kListed);
  EXPECT_EQ(table().promised_bytes(), 0U);
  ASSERT_EQ(job()->phase, JobPhase::kOpen);
  ASSERT_EQ(job()->states->frozen().size(), kListed);

  world_->Lose(*rank_);
  const uint64_t let_go = MostHits("server.frozen_let_go");
  EXPECT_GT(let_go, 0U);
  EXPECT_LE(let_go, 2 * FrozenTable::kRowsPerTurn) << "where the job ends, and in the same turn";
  ExpectNothingLeft();
}

TEST_F(FrozenListOfAJob, WhatItLacksIsPromisedToItMeanwhile) {
  Begin(Options(0));
  world_->Reserve(MakeSpec({.name = "bob"}), 0, kBob);
  world_->loop().Turn();
  const auto refused = world_->TakeReply<Refused>();
  ASSERT_TRUE(refused) << "free bytes that were promised are not free";
  EXPECT_EQ(refused->why.id(), ErrorId::kPoolFull);
  world_->Settle();
  EXPECT_EQ(job()->phase, JobPhase::kOpen);
  EXPECT_EQ(table().chunks().size(), kListed);
}

TEST_F(FrozenListOfAJob, AnotherJobOfTheUserWaitsUntilItIsThere) {
  Begin(Options(kListed * kExtent + 8 * kMiB));
  world_->Reserve(Listing("second", 1), 0, kAlice);
  world_->loop().Turn();
  const auto refused = world_->TakeReply<Refused>();
  ASSERT_TRUE(refused) << "nobody can say what it lacks";
  EXPECT_EQ(refused->why.id(), ErrorId::kNotReady) << "clients wait and try again";
  world_->Settle();
  EXPECT_NE(world_->Join(Listing("second", 1), 0, kAlice), nullptr);
  EXPECT_EQ(table().chunks().size(), kListed) << "they share";
  EXPECT_EQ(table().pool_bytes(), kListed * kExtent);
}

TEST_F(FrozenListOfAJob, ARankThatGoesAwayMeanwhileLeavesNothingBehind) {
  for (int turns = 0; turns < 8; ++turns) {
    Begin();
    for (int i = 0; i < turns; ++i) world_->loop().Turn();
    world_->Lose(*rank_);
    ExpectNothingLeft();
  }
}

TEST_F(FrozenListOfAJob, ARankHearsWhereRoomIsMissingAfterAll) {
  Begin(Options(0));
  std::vector<Extent> stolen;
  ASSERT_TRUE(world_->pool().Take(std::array{world_->pool().largest_free_bytes()}, &stolen));
  world_->Settle();
  EXPECT_EQ(job(), nullptr);
  const auto over = world_->TakeReply<SessionOver>();
  ASSERT_TRUE(over) << "it hears why";
  EXPECT_EQ(over->why.id(), ErrorId::kPoolFull) << over->why.Format();
  world_->pool().Release(stolen);
  ExpectNothingLeft();
}

}  // namespace frozen_list_test
}  // namespace tidepool::memserver
