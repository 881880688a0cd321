// Frozen chunks over a death of the server: what is sealed is kept, references are counted anew, an
// upload begins again.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "memserver/residency/frozen_table.h"
#include "shm/spec/frozen.h"
#include "tests/fakes/small_trainer.h"

namespace tidepool::memserver {
namespace frozen_restart_test {

constexpr uint64_t kElements = 1024, kBytes = kElements * sizeof(float),
                   kExtent = kPageBytes + kBytes;
constexpr uint64_t kOffset = 32 * kKiB;
constexpr ChunkId kFrozen = 2;

std::vector<std::byte> Content() {
  std::vector<std::byte> bytes(kBytes);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 256);
  return bytes;
}

shm::JobSpec Adapter(const std::string& name) {
  shm::JobSpec spec = MakeSpec({.name = name});
  spec.frozen = {{kElements, DType::kF32, HashOf(Content())}};
  return spec;
}

// Two jobs over one frozen chunk; both have their weights.
class FrozenRestart : public ::testing::Test {
 protected:
  FrozenRestart()
      : world_(WithLease()), one_(&world_, Adapter("one")), two_(&world_, Adapter("two")) {
    EXPECT_TRUE(one_.JoinAll() && two_.JoinAll());
    one_.PutWeights(1);
    two_.PutWeights(2);
    world_.Settle();
  }
  shm::Completion Claim(SmallTrainer* job) {
    return world_.Await(&job->rank(0), job->rank(0).Claim(kFrozen));
  }
  shm::Completion Put(SmallTrainer* job, uint64_t begin, uint64_t end) {
    std::memcpy(job->rank(0).rcache() + kOffset, Content().data() + begin, end - begin);
    return world_.Await(&job->rank(0),
                        job->rank(0).Put(kFrozen, begin / 4, (end - begin) / 4, kOffset));
  }
  void Provide(SmallTrainer* job) {
    EXPECT_EQ(Claim(job).bytes, 0u);
    EXPECT_EQ(Put(job, 0, kBytes).error, 0u);
    EXPECT_EQ(Claim(job).bytes, kBytes);
  }
  void ExpectThere(SmallTrainer* job) {
    EXPECT_EQ(Claim(job).bytes, kBytes);
    FakeRank& rank = job->rank(0);
    EXPECT_EQ(world_.Await(&rank, rank.Fetch(kFrozen, 0, kElements, kOffset, 0)).error, 0u);
    EXPECT_EQ(std::memcmp(rank.rcache() + kOffset, Content().data(), kBytes), 0);
  }
  uint64_t Used() { return world_.pool().total_bytes() - world_.pool().free_bytes(); }
  uint64_t UsedByJobs() {
    uint64_t used = 0;
    for (const auto& job : world_.tables().jobs) used += job->states->pool_bytes();
    return used;
  }
  const FrozenChunk& chunk() { return *world_.tables().frozen->chunks().begin()->second; }

  ServeWorld world_;
  SmallTrainer one_, two_;
};

TEST_F(FrozenRestart, WhatIsThereStaysThereOnceForAllJobs) {
  Provide(&one_);
  const uint64_t used = Used();
  for (int server = 0; server < 3; ++server) {
    world_.Restart();
    EXPECT_EQ(Used(), used);
    EXPECT_EQ(Used(), UsedByJobs() + kExtent);
    EXPECT_EQ(chunk().holders, 2u);
    EXPECT_TRUE(chunk().sealed);
  }
  ASSERT_TRUE(world_.Resume(&one_.rank(0), one_.spec()) &&
              world_.Resume(&two_.rank(0), two_.spec()));
  ExpectThere(&one_);
  ExpectThere(&two_);
  one_.LeaveAll();
  world_.Settle();
  EXPECT_EQ(chunk().holders, 1u);
  ExpectThere(&two_);
  two_.LeaveAll();
  world_.Settle();
  EXPECT_EQ(Used(), 0u);
}

TEST_F(FrozenRestart, AnUploadThatWasCutOffBeginsAgain) {
  EXPECT_EQ(Claim(&one_).bytes, 0u);
  EXPECT_EQ(Put(&one_, 0, kBytes / 2).error, 0u);
  two_.rank(0).Claim(kFrozen);
  world_.Settle();
  world_.Restart();
  EXPECT_FALSE(chunk().sealed);
  ASSERT_TRUE(world_.Resume(&one_.rank(0), one_.spec()) &&
              world_.Resume(&two_.rank(0), two_.spec()));
  // What was not answered is sent again.
  shm::Request put = FakeRank::PutRequest(kFrozen, kElements / 2, kElements / 2, kOffset);
  put.flags = shm::kResubmitted;
  const shm::Completion late = world_.Await(&one_.rank(0), one_.rank(0).Send(put));
  EXPECT_EQ(late.error, static_cast<uint32_t>(ErrorId::kUploadLost))
      << "the bytes before it are not trusted any more";
  shm::Request claim = FakeRank::ClaimRequest(kFrozen);
  claim.flags = shm::kResubmitted;
  EXPECT_EQ(world_.Await(&two_.rank(0), two_.rank(0).Send(claim)).bytes, 0u);
  EXPECT_EQ(Put(&two_, 0, kBytes).error, 0u);
  ExpectThere(&two_);
  ExpectThere(&one_);
}

TEST_F(FrozenRestart, AJobWhoseFrozenChunkHasAnotherNameThanItListsIsGivenUp) {
  Provide(&one_);
  chunk().record->content.bytes[0] ^= std::byte{1};
  world_.Restart();
  EXPECT_TRUE(world_.tables().jobs.empty());
  EXPECT_EQ(Used(), 0u);
}

TEST_F(FrozenRestart, ASealThatIsNoneIsNotBelieved) {
  Provide(&one_);
  chunk().record->sealed.store(1);
  world_.Restart();
  EXPECT_EQ(world_.tables().jobs.size(), 2u);
  EXPECT_FALSE(chunk().sealed);
  ASSERT_TRUE(world_.Resume(&two_.rank(0), two_.spec()));
  Provide(&two_);
}

TEST_F(FrozenRestart, AJobThatIsKeptWithoutRanksKeepsItsFrozenChunks) {
  Provide(&one_);
  world_.Lose(one_.rank(0));
  two_.LeaveAll();
  world_.Settle();
  EXPECT_EQ(Used(), UsedByJobs() + kExtent);
  world_.Restart();
  EXPECT_EQ(chunk().holders, 1u);
  const auto again = world_.Join(Adapter("one"), 0);
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(world_.Await(again.get(), again->Claim(kFrozen)).bytes, kBytes);
  world_.Lose(*again);
  world_.Settle();
  world_.clock().Advance(kLeaseNs);
  world_.Settle();
  EXPECT_EQ(Used(), 0u) << "they go with the lease";
}

}  // namespace frozen_restart_test
}  // namespace tidepool::memserver
