// Who writes the `done` word of a fetch on a GPU, its stream or the serve loop, and on which of a
// way's two streams a copy is. The GPU is a SlowDevice, whose copies move when the test says so.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "memserver/probe/done_probe.h"
#include "tests/fakes/real_clock.h"
#include "tests/fakes/serve_world.h"
#include "tests/fakes/slow_device.h"

namespace tidepool::memserver {
namespace done_way_test {

constexpr uint64_t kAll = uint64_t{1} << 40;  // bytes: a whole copy
constexpr uint64_t kElements = 192;

class DoneWay : public ::testing::TestWithParam<DoneBy> {
 protected:
  DoneWay() : world_(WithLease()), gpu_(GpuOf(&slow_, world_.pool().mapped(), "", GetParam())) {
    world_.BringFrom(gpu_.get());
  }

  // A job of one rank with all weights in.
  std::unique_ptr<FakeRank> JoinWithWeights() {
    auto rank = world_.Join(MakeSpec({.chunks = kChunks}), 0);
    EXPECT_NE(rank, nullptr);
    for (ChunkId chunk = 0; chunk < kChunks; ++chunk) {
      rank->Put(chunk, 0, kElements, 0);
      world_.Settle();
      MoveAll();
      world_.Settle();
      EXPECT_EQ(rank->Take()->error, 0U);
    }
    return rank;
  }
  void MoveAll() {
    while (slow_.busy() > 0) slow_.Move(0, kAll);
  }
  // One whose copy begins with the next turns.
  uint64_t Fetch(FakeRank* rank, ChunkId chunk) {
    const uint64_t counter = rank->Fetch(chunk, 0, kElements, 4096 * chunk, 0);
    rank->flags().ready(counter)->store(counter);
    return counter;
  }
  static bool IsDone(const FakeRank& rank, uint64_t counter) {
    return rank.flags().IsDone(counter);
  }

  static constexpr uint32_t kChunks = 3;
  SlowDevice slow_;
  ServeWorld world_;
  std::unique_ptr<Gpu> gpu_;
};

INSTANTIATE_TEST_SUITE_P(Either, DoneWay, ::testing::Values(DoneBy::kStream, DoneBy::kLoop),
                         [](const auto& way) {
                           return way.param == DoneBy::kStream ? "Stream" : "Loop";
                         });

TEST_P(DoneWay, TheWordIsWrittenWhenTheCopyHasEndedAndNotBefore) {
  auto rank = JoinWithWeights();
  const uint64_t fetch = Fetch(rank.get(), 0);
  world_.Settle();
  slow_.Move(0, 4);
  world_.Settle();
  EXPECT_FALSE(IsDone(*rank, fetch));

  slow_.Move(0, kAll);
  EXPECT_EQ(IsDone(*rank, fetch), GetParam() == DoneBy::kStream) << "the loop has not looked yet";
  world_.Settle();
  EXPECT_TRUE(IsDone(*rank, fetch));
  EXPECT_EQ(rank->Take()->counter, fetch);
}

TEST_P(DoneWay, TwoChunksAreOnTwoStreamsAndOneChunkOnOne) {
  auto rank = JoinWithWeights();
  Fetch(rank.get(), 0);
  Fetch(rank.get(), 1);
  world_.Settle();
  EXPECT_EQ(slow_.busy(), 2U)
      << "the engine has the next copy while a word is written behind the first";
  MoveAll();
  world_.Settle();

  Fetch(rank.get(), 2);
  Fetch(rank.get(), 2);
  world_.Settle();
  EXPECT_EQ(slow_.busy(), 1U) << "copies of the same bytes keep their order";
}

TEST_P(DoneWay, CopiesThatEndOutOfOrderAreAnsweredInOrder) {
  auto rank = JoinWithWeights();
  const uint64_t first = Fetch(rank.get(), 0), second = Fetch(rank.get(), 1);
  world_.Settle();
  ASSERT_EQ(slow_.busy(), 2U);
  slow_.Move(1, kAll);
  world_.Settle();
  EXPECT_FALSE(IsDone(*rank, first));
  EXPECT_FALSE(rank->Take().has_value());

  slow_.Move(0, kAll);
  world_.Settle();
  EXPECT_TRUE(IsDone(*rank, first) && IsDone(*rank, second));
  EXPECT_EQ(rank->Take()->counter, first);
  EXPECT_EQ(rank->Take()->counter, second);
}

TEST_P(DoneWay, ALostRankStaysUntilBothStreamsAreThroughAndItsWordsStayPoison) {
  auto rank = JoinWithWeights();
  const uint64_t first = Fetch(rank.get(), 0), second = Fetch(rank.get(), 1);
  world_.Settle();
  ASSERT_EQ(slow_.busy(), 2U);
  world_.Lose(*rank);
  world_.Settle();
  slow_.Move(1, kAll);
  world_.Settle();
  EXPECT_EQ(world_.tables().slots.size(), 1U) << "the first copy still writes to its memory";

  slow_.Move(0, kAll);
  world_.Settle();
  EXPECT_EQ(world_.tables().slots.size(), 0U);
  for (const uint64_t counter : {first, second})
    EXPECT_EQ(rank->flags().done(counter)->load(), shm::kPoisonedFlag);
}

TEST(ChooseDone, AStreamsWordIsTakenWhereItComesWithTheCopy) {
  std::array<int64_t, 3> alone{30'000, 20'000, 900'000}, written{40'000, 35'000, 1'000'000};
  EXPECT_EQ(ChooseDone(alone, written).by, DoneBy::kStream)
      << "single times that are long say nothing";
}

TEST(ChooseDone, TheLoopsIsTakenWhereAStreamsWordWaitsForASlice) {
  std::array<int64_t, 3> alone{30'000, 20'000, 25'000}, written{2'000'000, 35'000, 1'500'000};
  const DoneChoice choice = ChooseDone(alone, written);
  EXPECT_EQ(choice.by, DoneBy::kLoop);
  EXPECT_NE(choice.why.find("25 us without"), std::string::npos) << choice.why;
}

class GpusOfATable : public ::testing::Test {
 protected:
  GpuSource Source(DoneBy by) {
    const auto list = [] {
      std::vector<device::Gpu> gpus(3);
      for (size_t i = 0; i < gpus.size(); ++i) {
        gpus[i].uuid.back() = static_cast<uint8_t>(i);
        gpus[i].name = i < 2 ? "a model" : "another";
      }
      return Result<std::vector<device::Gpu>>(gpus);
    };
    const auto open = [](const device::Gpu&) {
      return Result<OpenedGpu>({.device = std::make_unique<device::HostDevice>(
                                    device::HostDeviceOptions{.clock = RealClock()}),
                                .form_note = {}});
    };
    const auto choose = [this, by](device::Device*, const device::Gpu&) {
      ++asked_;
      return DoneChoice{by, "measured"};
    };
    return {list, open, choose};
  }
  int asked_ = 0;
};

TEST_F(GpusOfATable, EachModelIsMeasuredOnce) {
  GpuTable table(Source(DoneBy::kLoop), {});
  for (uint8_t i = 0; i < 3; ++i) {
    device::GpuUuid uuid{};
    uuid.back() = i;
    auto gpu = table.Open(uuid);
    ASSERT_TRUE(gpu.ok());
    EXPECT_EQ((*gpu)->done().by, DoneBy::kLoop);
  }
  EXPECT_EQ(asked_, 2);
}

}  // namespace done_way_test
}  // namespace tidepool::memserver
