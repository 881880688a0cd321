// StagedCollective: blocks that only streams reach are gathered and reduced through the host's
// group.
#include "trainer/comm/staged_collective.h"

#include <vector>

#include <gtest/gtest.h>

#include "device/host/host_device.h"
#include "tests/fakes/real_clock.h"
#include "tests/fakes/thread_collective.h"
#include "tests/trainer/comm/counted_blocks.h"

namespace tidepool::trainer {
namespace staged_collective_test {

using testing::ThreadCollective;
using testing::ThreadGroup;

// Both ranks of a group on this thread: an operation is carried out when the second has started it.
class StagedCollectiveTest : public ::testing::Test {
 protected:
  StagedCollectiveTest() : shared_(2), device_({.clock = RealClock()}) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      ranks_.push_back(
          std::move(StagedCollective::Open(std::make_unique<ThreadCollective>(&shared_, rank, 1, 0),
                                           &device_))
              .value());
    }
  }

  ThreadGroup shared_;
  device::HostDevice device_;
  std::vector<std::unique_ptr<StagedCollective>> ranks_;
};

TEST_F(StagedCollectiveTest, GathersAndReducesInPlaceSeveralAtATime) {
  std::vector<float> gathered[2] = {{1, 2, -1, -1}, {-1, -1, 3, 4}};
  std::vector<float> reduced[2] = {{1, 2, 3, 4, 5, 6}, {10, 20, 30, 40, 50, 60}};
  Collective::Ticket gather[2], reduce[2];
  for (uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(ranks_[rank]->stream(), nullptr);
    gather[rank] = ranks_[rank]->StartAllGather({gathered[rank].data(), 2, DType::kF32});
    reduce[rank] = ranks_[rank]->StartReduceScatter({reduced[rank].data(), 3, DType::kF32});
    EXPECT_EQ(ranks_[rank]->Test(gather[rank]), rank == 1);
  }
  EXPECT_EQ(gathered[0], (std::vector<float>{1, 2, -1, -1})) << "the result comes with Wait";
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(ranks_[rank]->Wait(gather[rank]).ok());
    ASSERT_TRUE(ranks_[rank]->Wait(reduce[rank]).ok());
    EXPECT_EQ(gathered[rank], (std::vector<float>{1, 2, 3, 4}));
    const float* own = reduced[rank].data() + 3 * rank;
    EXPECT_EQ(std::vector<float>(own, own + 3),
              rank == 0 ? (std::vector<float>{11, 22, 33}) : (std::vector<float>{44, 55, 66}));
  }
}

// More than there are buffers: the rest begins when the oldest have ended, whoever is asked about.
TEST_F(StagedCollectiveTest, TakesTheMemoryThatTheEstimateCountsWhateverIsInFlight) {
  const ChunkLayout layout = LayoutOfSeveralSizes(2);
  const MemoryEstimate counted = EstimateMemory(layout, {.staged_at_once = kStagedAtOnce});
  const uint64_t shard = layout.ShardElements(0);
  constexpr size_t kOperations = 3 * kStagedAtOnce;
  std::vector<std::vector<float>> blocks[2];
  std::vector<Collective::Ticket> tickets[2];
  for (uint32_t rank = 0; rank < 2; ++rank) {
    for (size_t i = 0; i < kOperations; ++i)
      blocks[rank].emplace_back(2 * shard, static_cast<float>((rank + 1) * (i + 1)));
    for (size_t i = 0; i < kOperations; ++i) {
      tickets[rank].push_back(
          ranks_[rank]->StartReduceScatter({blocks[rank][i].data(), shard, DType::kF32}));
    }
    EXPECT_EQ(ranks_[rank]->staging_bytes(), counted.staging_bytes);
  }
  for (int turn = 0; turn < 100 && !ranks_[0]->Test(tickets[0].back()); ++turn)
    static_cast<void>(ranks_[1]->Test(tickets[1].back()));
  for (uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(ranks_[rank]->Test(tickets[rank].back()));
    for (size_t i = kOperations; i-- > 0;) {
      ASSERT_TRUE(ranks_[rank]->Wait(tickets[rank][i]).ok());
      ASSERT_EQ(blocks[rank][i][rank * shard + 7], static_cast<float>(3 * (i + 1))) << i;
    }
    EXPECT_EQ(ranks_[rank]->staging_bytes(), counted.staging_bytes);
  }
}

TEST_F(StagedCollectiveTest, AFailureOfTheHostsGroupIsTold) {
  std::vector<float> block(4);
  const auto gather = ranks_[0]->StartAllGather({block.data(), 2, DType::kF32});
  shared_.Break();
  EXPECT_TRUE(ranks_[0]->Test(gather));
  EXPECT_EQ(ranks_[0]->Wait(gather).id(), ErrorId::kCollectiveFailed);
  // Its end waits for it.
  static_cast<void>(ranks_[0]->StartAllGather({block.data(), 2, DType::kF32}));
}

}  // namespace staged_collective_test
}  // namespace tidepool::trainer
