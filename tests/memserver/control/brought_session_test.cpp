// Sessions whose rank brings its rCache, in a serve loop: when a copy begins, what ends it, and
// what a rank leaves behind. The GPU is a SlowDevice, whose copies move when the test says so: the
// first busy stream is the one to the rCache, where that has something to do.
#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tests/fakes/serve_world.h"
#include "tests/fakes/slow_device.h"

namespace tidepool::memserver {
namespace brought_session_test {

constexpr uint64_t kAll = uint64_t{1} << 40;  // bytes: a whole copy
constexpr uint64_t kElements = 192;

class BroughtSession : public ::testing::Test {
 protected:
  BroughtSession() : world_(WithLease()), gpu_(GpuOf(&slow_, world_.pool().mapped())) {
    world_.BringFrom(gpu_.get());
  }

  // A job of one rank with all weights in.
  std::unique_ptr<FakeRank> JoinWithWeights(const std::string& name = "job") {
    const shm::JobSpec spec = MakeSpec({.name = name});
    auto rank = world_.Join(spec, 0);
    EXPECT_NE(rank, nullptr);
    for (ChunkId chunk = 0; chunk < 2; ++chunk) {
      rank->Put(chunk, 0, kElements, 0);
      world_.Settle();
      while (slow_.busy() > 0) slow_.Move(0, kAll);
      world_.Settle();
      EXPECT_EQ(rank->Take()->error, 0U);
    }
    return rank;
  }
  static void SetReady(const FakeRank& rank, uint64_t counter) {
    rank.flags().ready(counter)->store(counter);
  }
  static bool IsDone(const FakeRank& rank, uint64_t counter) {
    return rank.flags().IsDone(counter);
  }
  uint64_t Fetch(FakeRank* rank, ChunkId chunk = 0) {
    return rank->Fetch(chunk, 0, kElements, 4096 * chunk, 0);
  }
  uint64_t Submit(FakeRank* rank, ChunkId chunk = 0) {
    return rank->Submit({chunk, 0, kElements, 4096 * chunk, 0, 0});
  }
  const GpuStreams& streams() { return *world_.tables().gpus.front(); }

  SlowDevice slow_;
  ServeWorld world_;
  std::unique_ptr<Gpu> gpu_;
};

TEST_F(BroughtSession, ACopyBeginsWhenItsFlagSaysSoAndItsStreamSaysWhenItHasEnded) {
  auto rank = JoinWithWeights();
  const uint64_t fetch = Fetch(rank.get());
  world_.Settle();
  EXPECT_EQ(slow_.busy(), 0U) << "its block is not free";
  rank->flags().ready(fetch)->store(fetch - 512);  // what the slot said before
  world_.Settle();
  EXPECT_EQ(slow_.busy(), 0U);
  SetReady(*rank, fetch);
  world_.Settle();
  ASSERT_EQ(slow_.busy(), 1U);
  slow_.Move(0, 4);
  world_.Settle();
  EXPECT_FALSE(IsDone(*rank, fetch));
  EXPECT_FALSE(rank->Take().has_value());
  slow_.Move(0, kAll);
  EXPECT_TRUE(IsDone(*rank, fetch)) << "by the stream, before the loop has seen it";
  world_.Settle();
  EXPECT_EQ(rank->Take()->counter, fetch);
}

TEST_F(BroughtSession, RequestsBeginInTheOrderInWhichTheirFlagsSaySo) {
  auto rank = JoinWithWeights();
  const uint64_t first = Fetch(rank.get(), 0), second = Fetch(rank.get(), 1);
  SetReady(*rank, second);
  world_.Settle();
  ASSERT_EQ(slow_.busy(), 1U);
  slow_.Move(0, kAll);
  world_.Settle();
  EXPECT_EQ(rank->Take()->counter, second);
  EXPECT_FALSE(IsDone(*rank, first));
}

TEST_F(BroughtSession, AGradientIsDoneWhenKeptMemoryHasIt) {
  auto rank = JoinWithWeights();
  const uint64_t gradient = Submit(rank.get());
  SetReady(*rank, gradient);
  world_.Settle();
  ASSERT_EQ(slow_.busy(), 1U);
  slow_.Move(0, kAll);
  EXPECT_FALSE(IsDone(*rank, gradient)) << "a server that died now would not have it";
  world_.Settle();
  EXPECT_TRUE(IsDone(*rank, gradient));
  EXPECT_EQ(rank->Take()->error, 0U);
}

TEST_F(BroughtSession, AnyWordOfALiarStartsHisOwnCopyAndNothingElse) {
  auto rank = JoinWithWeights();
  for (const uint64_t word : {uint64_t{INT64_MAX}, uint64_t{1} << 62, uint64_t{0} - 1}) {
    const uint64_t fetch = Fetch(rank.get());
    rank->flags().ready(fetch)->store(word);
    world_.Settle();
    const bool begins = static_cast<int64_t>(word - fetch) >= 0;
    EXPECT_EQ(slow_.busy(), begins ? 1U : 0U) << word;
    SetReady(*rank, fetch);
    world_.Settle();
    while (slow_.busy() > 0) slow_.Move(0, kAll);
    world_.Settle();
    EXPECT_EQ(rank->Take()->counter, fetch);
  }
}

TEST_F(BroughtSession, ARequestAnsweredWithAnErrorLeavesNoStreamWaiting) {
  auto rank = JoinWithWeights("pair");
  const shm::JobSpec spec = MakeSpec({.name = "two", .world = 2});
  auto one = world_.Join(spec, 0), two = world_.Join(spec, 1);
  ASSERT_TRUE(one != nullptr && two != nullptr);
  world_.Lose(*two);
  world_.Settle();
  const uint64_t gradient = one->Submit({0, 0, kElements / 2, 0, 0, 0});
  SetReady(*one, gradient);
  world_.Settle();
  const auto answer = one->Take();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->error, static_cast<uint32_t>(ErrorId::kPeerLost));
  EXPECT_TRUE(IsDone(*one, gradient));
}

// The point of it all: memory that a copy still writes to belongs to nobody else.
TEST_F(BroughtSession, ALostRankStaysUntilItsCopiesHaveEnded) {
  auto rank = JoinWithWeights();
  const uint64_t gradient = Submit(rank.get());
  SetReady(*rank, gradient);
  world_.Settle();
  ASSERT_EQ(slow_.busy(), 1U);
  slow_.Move(0, 4);
  world_.Lose(*rank);
  world_.Settle();
  ASSERT_EQ(world_.tables().slots.size(), 1U);
  const ConnectionId early = world_.Reserve(MakeSpec({}), 0);
  world_.Settle();
  const auto refused = world_.TakeReply<Refused>();
  ASSERT_TRUE(refused.has_value() && refused->connection == early)
      << "nobody may write where the copy still writes";
  EXPECT_EQ(refused->why.id(), ErrorId::kRankTaken);
  EXPECT_FALSE(rank->Ended().has_value());
  slow_.Move(0, kAll);
  world_.Settle();
  EXPECT_TRUE(world_.tables().slots.empty());
  EXPECT_TRUE(rank->Ended().has_value());
  EXPECT_EQ(rank->flags().done(gradient)->load(), shm::kPoisonedFlag);
  EXPECT_EQ(streams().sessions, 0U);
  auto next = world_.Join(MakeSpec({}), 0);
  EXPECT_NE(next, nullptr) << "the job was kept";
}

TEST_F(BroughtSession, NothingNewBeginsForARankThatIsLeaving) {
  auto rank = JoinWithWeights();
  const uint64_t first = Fetch(rank.get(), 0), second = Fetch(rank.get(), 1);
  SetReady(*rank, first);
  world_.Settle();
  world_.Lose(*rank);
  world_.Settle();
  SetReady(*rank, second);
  world_.Settle();
  slow_.Move(0, kAll);
  world_.Settle();
  EXPECT_EQ(slow_.busy(), 0U);
  EXPECT_TRUE(world_.tables().slots.empty());
}

TEST_F(BroughtSession, AnEndOfTheServerWaitsForCopiesAndPoisonsTheRest) {
  auto rank = JoinWithWeights();
  const uint64_t fetch = Fetch(rank.get());
  SetReady(*rank, fetch);
  world_.Settle();
  world_.Post(StopServing{});
  world_.Settle();
  EXPECT_FALSE(world_.loop().stopped());
  slow_.Move(0, kAll);
  world_.Settle();
  EXPECT_TRUE(world_.loop().stopped());
  EXPECT_EQ(rank->flags().done(fetch + 1)->load(), shm::kPoisonedFlag);
}

TEST_F(BroughtSession, AHandOverWaitsForCopiesAndPoisonsNothing) {
  auto rank = JoinWithWeights();
  const uint64_t fetch = Fetch(rank.get());
  SetReady(*rank, fetch);
  world_.Settle();
  world_.Post(StopServing{true});
  world_.Settle();
  EXPECT_FALSE(world_.loop().stopped());
  slow_.Move(0, kAll);
  world_.Settle();
  EXPECT_TRUE(world_.loop().stopped());
  EXPECT_NE(rank->flags().done(fetch + 1)->load(), shm::kPoisonedFlag)
      << "the next server goes on with it";
}

TEST_F(BroughtSession, AFailedGpuEndsItsSessionsAndNoOthers) {
  auto rank = JoinWithWeights();
  world_.BringFrom(nullptr);
  auto other = world_.Join(MakeSpec({.name = "host"}), 0);
  ASSERT_NE(other, nullptr);
  world_.Settle();
  world_.TakeAllReplies();
  const uint64_t fetch = Fetch(rank.get());
  SetReady(*rank, fetch);
  world_.Settle();
  slow_.Fail();
  world_.Settle();
  const auto over = world_.TakeReply<SessionOver>();
  ASSERT_TRUE(over.has_value());
  EXPECT_EQ(over->connection, rank->connection());
  EXPECT_EQ(over->why.id(), ErrorId::kCudaFailed);
  EXPECT_EQ(rank->Ended(), ErrorId::kCudaFailed);
  EXPECT_EQ(rank->flags().done(fetch)->load(), shm::kPoisonedFlag);
  EXPECT_FALSE(other->Ended().has_value());
  other->Put(0, 0, kElements, 0);
  world_.Settle();
  EXPECT_EQ(other->Take()->error, 0U);
  world_.BringFrom(gpu_.get());
  EXPECT_EQ(world_.Join(MakeSpec({}), 0)->Ended(), std::nullopt);
  world_.Settle();
  EXPECT_EQ(world_.TakeReply<SessionOver>()->why.id(), ErrorId::kCudaFailed)
      << "who comes later hears it at once";
}

TEST_F(BroughtSession, RanksOfOneJobAreAllOnAGpuOrAllOnTheHost) {
  const shm::JobSpec spec = MakeSpec({.world = 2});
  ASSERT_NE(world_.Join(spec, 0), nullptr);
  world_.BringFrom(nullptr);
  EXPECT_EQ(world_.Join(spec, 1), nullptr);
  EXPECT_EQ(world_.TakeReply<Refused>()->why.id(), ErrorId::kJobMismatch);
}

TEST_F(BroughtSession, ItTakesNoneOfTheServersMemoryForRcaches) {
  auto rank = JoinWithWeights();
  world_.Post(SnapshotWanted{});
  world_.Settle();
  EXPECT_EQ(world_.TakeReply<SnapshotReady>()->snapshot->rcache_used, 0U);
}

TEST_F(BroughtSession, CopiesOfMemoryThatIsNotPinnedAreCounted) {
  slow_.SetRegisters(false);
  gpu_ = GpuOf(&slow_, world_.pool().mapped());
  EXPECT_EQ(gpu_->pin_failure().id(), ErrorId::kCudaFailed);
  EXPECT_EQ(gpu_->registered_bytes(), 0U);
  world_.BringFrom(gpu_.get());
  auto rank = JoinWithWeights();
  EXPECT_EQ(streams().copies_unregistered, 2U);
}

TEST(SharedStreams, AStreamHoldsFewBytesButAlwaysTwoCopies) {
  SlowDevice slow;
  const auto gpu = GpuOf(&slow, {});
  RootComplex root("alone", 0, kGpuBytesInFlight);
  auto streams = std::move(GpuStreams::Open(gpu.get(), &root)).value();
  std::vector<std::byte> flags(shm::kFlagBytes);
  const auto lane = std::make_unique<CopyLane>(streams.get(), 8, shm::FlagPages(flags.data()), 0);
  Copy copy;
  copy.request.op = static_cast<uint32_t>(shm::Op::kFetch);
  copy.bytes = kGpuBytesInFlight;
  std::byte nothing{};
  for (uint32_t copies = 0; copies < kGpuCopiesMin; ++copies) {
    EXPECT_TRUE(lane->HasRoom(copy.request))
        << "the copy engine has the next one when the one before ends";
    lane->Start(copy, &nothing, &nothing);
  }
  EXPECT_FALSE(lane->HasRoom(copy.request));
  copy.request.op = static_cast<uint32_t>(shm::Op::kSubmitGradient);
  EXPECT_TRUE(lane->HasRoom(copy.request)) << "the other way is another stream";
}

}  // namespace brought_session_test
}  // namespace tidepool::memserver
