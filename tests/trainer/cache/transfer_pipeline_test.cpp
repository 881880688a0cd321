// TransferPipeline: order of collectives, waits, and more operations than there are tickets.
#include "trainer/cache/transfer_pipeline.h"

#include <gtest/gtest.h>

#include "tests/fakes/memory_chunk_service.h"
#include "trainer/layout/build_layout.h"

namespace tidepool::trainer {
namespace transfer_pipeline_test {

using testing::MemoryChunkService;
using testing::MemoryServer;

SteadyClock clock;

ChunkLayout Chunks(int count, uint32_t world) {
  std::vector<ParameterNote> notes;
  for (int i = 0; i < count; ++i) notes.push_back({"p" + std::to_string(i), {64}, 0, 0, false});
  LayoutOptions options;
  options.world = world;
  options.chunk_bytes = 64 * 4;
  return BuildLayout(notes, options).value();
}

// Notes what is started; nothing ends before it is allowed to.
class NotingCollective final : public Collective {
 public:
  uint32_t rank() const override { return 0; }
  uint32_t world() const override { return 2; }
  Ticket StartAllGather(const BlockView& block) override { return Start("gather", block); }
  Ticket StartReduceScatter(const BlockView& block) override { return Start("reduce", block); }
  Ticket StartAllToAll(const PartsView&) override { return Start("exchange", {}); }
  bool Test(Ticket ticket) override {
    ++tests;
    return ticket <= allowed && (ticket != slow || tests > 1000);
  }
  Status Wait(Ticket ticket) override {
    if (ticket == slow) slow = 0;
    return {};
  }
  Status Barrier() override { return {}; }
  Status SumDoubles(double*, uint64_t) override { return {}; }
  Status Broadcast(void*, uint64_t) override { return {}; }

  std::vector<std::string> started;
  Ticket allowed = UINT64_MAX;
  Ticket slow = 0;  // ends when somebody waits for it, or has asked a thousand times
  uint64_t tests = 0;

 private:
  Ticket Start(const std::string& name, const BlockView& block) {
    started.push_back(name + std::to_string(block.shard_elements));
    return started.size();
  }
};

TEST(TransferPipeline, CollectivesStartInTheOrderOfTheOperationsNotOfTheAnswers) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const ChunkLayout layout = Chunks(8, 2);
    MemoryServer server(&layout);
    MemoryChunkService service(&server, 0, 16 * layout.BlockBytes(), seed, 20);
    NotingCollective group;
    TransferPipeline pipeline({&layout, 0, &service, {&group}, &clock});
    const auto block = [&](int i) { return service.attachment().rcache + i * layout.BlockBytes(); };
    std::vector<std::string> expected;
    for (int i = 0; i < 8; ++i) {
      if (i % 3 == 2) {
        pipeline.Submit(static_cast<ChunkId>(i), block(i), 0, 0);
        expected.push_back("reduce32");
      } else {
        pipeline.Fetch(static_cast<ChunkId>(i), block(i), 0, {});
        expected.push_back("gather32");
      }
      EXPECT_LE(group.started.size(), expected.size());
    }
    ASSERT_TRUE(pipeline.WaitAll().ok());
    EXPECT_EQ(group.started, expected) << seed;
    EXPECT_EQ(SumOf(pipeline.traffic()).fetched, 6 * 32 * 4u);
    EXPECT_EQ(SumOf(pipeline.traffic()).handed_in, 2 * 32 * 4u);
  }
}

// The last operation has ended before the first one: it is waited for, not asked about for as long
// as it takes.
TEST(TransferPipeline, AWaitForAllSleepsUntilTheOldestHasEnded) {
  const ChunkLayout layout = Chunks(2, 2);
  MemoryServer server(&layout);
  MemoryChunkService service(&server, 0, 2 * layout.BlockBytes(), 1, 0);
  NotingCollective group;
  group.slow = 1;
  TransferPipeline pipeline({&layout, 0, &service, {&group}, &clock});
  pipeline.Fetch(0, service.attachment().rcache, 0, {});
  const auto last = pipeline.Fetch(1, service.attachment().rcache + layout.BlockBytes(), 0, {});
  for (int i = 0; i < 10 && !pipeline.Done(last); ++i) ASSERT_TRUE(pipeline.Progress().ok());
  ASSERT_TRUE(pipeline.Done(last));
  group.tests = 0;
  EXPECT_TRUE(pipeline.WaitAll().ok());
  EXPECT_LT(group.tests, 10u);
}

TEST(TransferPipeline, AFetchWaitsForTheBlocksEarlierOperation) {
  const ChunkLayout layout = Chunks(4, 2);
  MemoryServer server(&layout);
  server.values[1].assign(64, 5.0f);
  MemoryChunkService service(&server, 0, layout.BlockBytes(), 1, 0);
  NotingCollective group;
  group.allowed = 0;
  TransferPipeline pipeline({&layout, 0, &service, {&group}, &clock});
  std::byte* block = service.attachment().rcache;
  auto* values = reinterpret_cast<float*>(block);
  std::fill_n(values, 64, 3.0f);
  const auto submitted = pipeline.Submit(0, block, 0, 0);
  const auto fetched = pipeline.Fetch(1, block, 0, {submitted, 0});
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(pipeline.Progress().ok());
  EXPECT_FALSE(pipeline.Done(submitted));
  EXPECT_EQ(values[0], 3.0f);  // the gradients are still being reduced
  group.allowed = 1;
  ASSERT_TRUE(pipeline.Wait(submitted, false).ok());
  EXPECT_EQ(server.submits, 1u);
  group.allowed = 2;
  ASSERT_TRUE(pipeline.Wait(fetched, false).ok());
  EXPECT_TRUE(pipeline.Done(submitted));
  EXPECT_EQ(values[0], 5.0f);
}

// A compute stream whose operators end while somebody looks: at the look of this number.
class EndsWhenLookedAt final : public device::Stream {
 public:
  explicit EndsWhenLookedAt(int look) : looks_left_(look) {}
  void Copy(void*, const void*, uint64_t) override {}
  void Zero(void*, uint64_t) override {}
  void Launch(const device::Kernel&, const void*, uint64_t) override {}
  void WaitFlag(const device::Flag*, uint64_t) override {}
  void WriteFlag(device::Flag*, uint64_t) override {}
  Marker Record() override { return ++last_; }
  bool Passed(Marker) override { return --looks_left_ <= 0; }
  void WaitMarker(Stream*, Marker) override {}
  bool Progress(uint64_t) override { return false; }
  void Synchronize(Marker) override { looks_left_ = 0; }

 private:
  int looks_left_;
  Marker last_ = 0;
};

TEST(TransferPipeline, OperatorsMayEndBetweenAnyTwoLooks) {
  const ChunkLayout layout = Chunks(2, 1);
  for (int look = 1; look <= 8; ++look) {
    MemoryServer server(&layout);
    MemoryChunkService service(&server, 0, layout.BlockBytes(), 1, 0);
    EndsWhenLookedAt compute(look);
    TransferPipeline pipeline(
        {&layout, 0, &service, {nullptr}, &clock, CacheStreams{nullptr, &compute, nullptr}});
    const OpId fetched = pipeline.Fetch(1, service.attachment().rcache, 0, {0, pipeline.Mark()});
    EXPECT_TRUE(pipeline.Wait(fetched, false).ok()) << look;
    EXPECT_TRUE(pipeline.Done(fetched)) << look;
  }
}

TEST(TransferPipeline, TheServerIsToldHowManyUsesComeBefore) {
  const ChunkLayout layout = Chunks(1, 1);
  MemoryServer server(&layout);
  MemoryChunkService service(&server, 0, layout.BlockBytes(), 1, 0);
  TransferPipeline pipeline({&layout, 0, &service, {nullptr}, &clock});
  pipeline.Fetch(0, service.attachment().rcache, {0, 5}, {});
  EXPECT_EQ(service.uses_ahead(), 5u);
  ASSERT_TRUE(pipeline.WaitAll().ok());
}

TEST(TransferPipeline, MoreOperationsThanTicketsArePutOff) {
  const int count = 2 * static_cast<int>(client::kTicketsMax);
  const ChunkLayout layout = Chunks(count, 1);
  MemoryServer server(&layout);
  MemoryChunkService service(&server, 0, static_cast<uint64_t>(count) * layout.BlockBytes(), 3,
                             1000);
  TransferPipeline pipeline({&layout, 0, &service, {nullptr}, &clock});
  OpId last = 0;
  for (int i = 0; i < count; ++i) {
    last = pipeline.Fetch(
        static_cast<ChunkId>(i),
        service.attachment().rcache + static_cast<uint64_t>(i) * layout.BlockBytes(), 0, {});
  }
  ASSERT_TRUE(pipeline.Wait(last, false).ok());
  ASSERT_TRUE(pipeline.WaitAll().ok());
  EXPECT_LT(service.in_flight_max(), client::kTicketsMax);
  EXPECT_GT(service.in_flight_max(), client::kTicketsMax / 2);
  EXPECT_EQ(SumOf(pipeline.traffic()).fetched, static_cast<uint64_t>(count) * 64 * 4);
}

TEST(TransferPipeline, AnErrorStopsEverythingAfterIt) {
  const ChunkLayout layout = Chunks(4, 1);
  MemoryServer server(&layout);
  MemoryChunkService service(&server, 0, 4 * layout.BlockBytes(), 1, 0);
  TransferPipeline pipeline({&layout, 0, &service, {nullptr}, &clock});
  service.FailFrom(2);
  pipeline.Fetch(0, service.attachment().rcache, 0, {});
  const auto second = pipeline.Fetch(1, service.attachment().rcache + layout.BlockBytes(), 0, {});
  EXPECT_EQ(pipeline.Wait(second, false).id(), ErrorId::kServerGone);
  service.FailFrom(UINT64_MAX);
  const auto third = pipeline.Fetch(2, service.attachment().rcache, 0, {});
  EXPECT_EQ(pipeline.Wait(third, false).id(), ErrorId::kServerGone);
  EXPECT_EQ(pipeline.Progress().id(), ErrorId::kServerGone);
  EXPECT_EQ(pipeline.WaitAll().id(), ErrorId::kServerGone);
}

}  // namespace transfer_pipeline_test
}  // namespace tidepool::trainer
