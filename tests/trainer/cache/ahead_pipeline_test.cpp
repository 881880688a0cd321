// AheadPipeline: the CPU decides everything by what it puts into the streams; blocks are given away
// neither too early nor too late.
#include "trainer/cache/ahead_pipeline.h"

#include <gtest/gtest.h>

#include "tests/fakes/flag_chunk_service.h"
#include "tests/fakes/thread_collective.h"
#include "trainer/layout/build_layout.h"

namespace tidepool::trainer {
namespace ahead_pipeline_test {

using testing::FlagChunkService;
using testing::MemoryServer;

ChunkLayout Chunks(int count) {
  std::vector<ParameterNote> notes;
  for (int i = 0; i < count; ++i) notes.push_back({"p" + std::to_string(i), {64}, 0, 0, false});
  LayoutOptions options;
  options.chunk_bytes = 64 * 4;
  return BuildLayout(notes, options).value();
}

// One rank, `chunks` chunks and as many blocks. Beside the CPU, things move only in `service`.
class AheadPipelineTest : public ::testing::Test {
 protected:
  void Open(int chunks) {
    layout_ = Chunks(chunks);
    server_ = std::make_unique<MemoryServer>(&layout_);
    service_ = std::make_unique<FlagChunkService>(
        server_.get(), testing::FlagServiceSetup{.rcache_bytes = static_cast<uint64_t>(chunks) *
                                                                 layout_.BlockBytes()});
    compute_ = service_->OpenStream();
    const CacheStreams streams{service_->device(), compute_, service_->OpenStream()};
    pipeline_ = std::make_unique<AheadPipeline>(
        PipelineSetup{&layout_, 0, service_.get(), {nullptr}, &clock_, streams});
  }
  ~AheadPipelineTest() override {
    if (service_) service_->Leave();
  }

  std::byte* Block(uint64_t i) { return service_->attachment().rcache + i * layout_.BlockBytes(); }
  // True when the request with this number may be carried out.
  bool Ready(client::Ticket ticket) {
    const client::TicketFlags flags = service_->FlagsOf(ticket);
    return *flags.ready == flags.value;
  }
  // Puts in an operator with parameters, and a mark behind it.
  UseMark Use() {
    (void)pipeline_->Used();
    return pipeline_->Mark();
  }
  // Lets everything happen that can.
  void Settle() {
    EXPECT_FALSE(service_->Drive([] { return false; }));
  }

  SteadyClock clock_;
  ChunkLayout layout_;
  std::unique_ptr<MemoryServer> server_;
  std::unique_ptr<FlagChunkService> service_;
  device::Stream* compute_ = nullptr;
  // Flags of operators; outlive the pipeline, which waits for its streams when destroyed.
  device::Flag first_ = 0, second_ = 0;
  std::unique_ptr<AheadPipeline> pipeline_;
};

TEST_F(AheadPipelineTest, TheCpuGoesOnWhileNothingHasHappened) {
  Open(4);
  for (ChunkId chunk = 0; chunk < 4; ++chunk)
    server_->values[chunk].assign(64, static_cast<float>(chunk + 1));
  // Four chunks through one block, as operators that read them and leave a gradient.
  std::vector<std::vector<float>> read(4, std::vector<float>(64));
  const std::vector<float> gradient(64, 0.5f);
  BlockPast past;
  for (ChunkId chunk = 0; chunk < 4; ++chunk) {
    const OpId fetched = pipeline_->Fetch(chunk, Block(0), 0, past);
    ASSERT_TRUE(pipeline_->Wait(fetched, false).ok());
    compute_->Copy(read[chunk].data(), Block(0), 64 * 4);
    compute_->Copy(Block(0), gradient.data(), 64 * 4);
    past = {pipeline_->Submit(chunk, Block(0), 0, 0), 0};
  }
  EXPECT_EQ(service_->requests(), 8u);
  EXPECT_EQ(read[0][0], 0.0f) << "no operator has run";
  Settle();
  ASSERT_TRUE(pipeline_->Progress().ok());
  EXPECT_EQ(service_->blocked_waits(), 0u);
  for (ChunkId chunk = 0; chunk < 4; ++chunk)
    EXPECT_EQ(read[chunk], std::vector<float>(64, static_cast<float>(chunk + 1)));
  EXPECT_EQ(server_->submits, 4u);
  ASSERT_TRUE(pipeline_->WaitAll().ok());
  EXPECT_EQ(SumOf(pipeline_->traffic()).fetched, 4 * 64 * 4u);
  EXPECT_EQ(SumOf(pipeline_->traffic()).handed_in, 4 * 64 * 4u);
}

TEST_F(AheadPipelineTest, TheServerIsToldHowManyUsesComeBefore) {
  Open(2);
  pipeline_->Fetch(0, Block(0), {0, 5}, {});
  EXPECT_EQ(service_->uses_ahead(), 5u);
  pipeline_->Fetch(1, Block(1), 0, {});
  EXPECT_EQ(service_->uses_ahead(), 0u);
}

TEST_F(AheadPipelineTest, ABlockIsGivenAwayWhenItsLastOperatorHasEndedNotBeforeAndNotLate) {
  Open(4);
  const OpId used = pipeline_->Fetch(0, Block(0), 0, {});
  EXPECT_TRUE(Ready(1)) << "nothing used the block before: no stream is asked";
  ASSERT_TRUE(pipeline_->Wait(used, false).ok());
  compute_->WaitFlag(&first_, 1);  // the operator
  const UseMark end = Use();
  compute_->WaitFlag(&second_, 1);  // another one behind it, on other blocks
  pipeline_->Fetch(1, Block(0), 0, {used, end});
  Settle();
  EXPECT_FALSE(Ready(2));
  first_ = 1;
  Settle();
  EXPECT_TRUE(Ready(2));
  // A use that has ended already does not go through a stream, which others may hold up.
  pipeline_->Fetch(2, Block(1), 0, {used, end});
  EXPECT_TRUE(Ready(3));
  second_ = 1;
}

TEST_F(AheadPipelineTest, ABlockThatWasFetchedInVainIsGivenAwayBehindItsFetch) {
  Open(2);
  server_->version = 0;
  const OpId parked = pipeline_->Fetch(0, Block(0), 1, {});  // this version does not exist yet
  pipeline_->Fetch(1, Block(0), 1, {parked, 0});
  Settle();
  EXPECT_TRUE(Ready(1));
  EXPECT_FALSE(Ready(2));
  server_->version = 1;
  Settle();
  EXPECT_TRUE(Ready(2));
  EXPECT_TRUE(pipeline_->WaitAll().ok());
}

TEST_F(AheadPipelineTest, MoreTransfersThanTicketsMakeTheCpuWait) {
  const int count = 2 * static_cast<int>(client::kTicketsMax);
  Open(count);
  for (int i = 0; i < count; ++i) {
    ASSERT_NE(pipeline_->Fetch(static_cast<ChunkId>(i), Block(static_cast<uint64_t>(i)), 0, {}), 0u)
        << i;
  }
  EXPECT_EQ(service_->in_flight_max(), kTicketsUsed);
  EXPECT_GT(pipeline_->wait_ns(), 0u);
  ASSERT_TRUE(pipeline_->WaitAll().ok());
  EXPECT_EQ(SumOf(pipeline_->traffic()).fetched, static_cast<uint64_t>(count) * 64 * 4);
}

TEST_F(AheadPipelineTest, PrefetchesAtWhichOperatorsStandAreSeenOthersAreNotCounted) {
  Open(3);
  const OpId late = pipeline_->Fetch(0, Block(0), 1, {});
  ASSERT_TRUE(pipeline_->Wait(late, true).ok());
  Settle();
  ASSERT_TRUE(pipeline_->Progress().ok());
  ASSERT_TRUE(pipeline_->Progress().ok());
  EXPECT_EQ(pipeline_->late(), 1u);
  server_->version = 1;
  Settle();
  const OpId in_time = pipeline_->Fetch(1, Block(1), 1, {});
  Settle();
  ASSERT_TRUE(pipeline_->Wait(in_time, true).ok());
  ASSERT_TRUE(pipeline_->WaitAll().ok());
  EXPECT_EQ(pipeline_->late(), 1u);
}

TEST_F(AheadPipelineTest, AfterAnErrorNothingIsRequestedAndNoStreamStays) {
  Open(4);
  service_->FailAnswerOf(2);
  const OpId first = pipeline_->Fetch(0, Block(0), 0, {});
  const OpId second = pipeline_->Fetch(1, Block(1), 0, {});
  ASSERT_TRUE(pipeline_->Wait(first, false).ok());
  ASSERT_TRUE(pipeline_->Wait(second, false).ok());
  const auto end = compute_->Record();
  pipeline_->Submit(1, Block(1), 0, 0);
  EXPECT_EQ(pipeline_->WaitAll().id(), ErrorId::kServerGone);
  EXPECT_TRUE(service_->Drive([&] { return compute_->Passed(end); })) << "its waits have ended";
  const uint64_t requests = service_->requests();
  EXPECT_EQ(pipeline_->Fetch(2, Block(2), 0, {}), 0u);
  EXPECT_EQ(pipeline_->Submit(0, Block(0), 0, 0), 0u);
  EXPECT_EQ(service_->requests(), requests);
  EXPECT_EQ(pipeline_->Wait(first, false).id(), ErrorId::kServerGone);
  EXPECT_EQ(pipeline_->Progress().id(), ErrorId::kServerGone);
  EXPECT_EQ(server_->submits, 0u);
}

TEST_F(AheadPipelineTest,
       TheCpuIsHeldBackBeforeItFillsTheDriversQueueAndStillHearsOfTheServersEnd) {
  Open(2);
  const OpId parked = pipeline_->Fetch(0, Block(0), 1, {});  // this version never comes
  ASSERT_TRUE(pipeline_->Wait(parked, false).ok());
  UseMark last = 0, when_ended = 0;
  uint64_t looks = 0;
  service_->AddActor([&] {
    if (++looks != 50) return false;
    when_ended = last;
    service_->Leave();
    return true;
  });
  for (UseMark i = 0; i < 2 * kOperatorsAhead; ++i) last = Use();
  EXPECT_EQ(when_ended, kOperatorsAhead);
  EXPECT_EQ(pipeline_->Progress().id(), ErrorId::kSessionEnded);
}

TEST_F(AheadPipelineTest, AMarkIsAskedForWhereManyOperatorsHadNone) {
  Open(1);
  for (uint64_t i = 1; i < kOperatorsAMark; ++i) EXPECT_FALSE(pipeline_->Used()) << i;
  EXPECT_TRUE(pipeline_->Used());
  pipeline_->Mark();
  EXPECT_FALSE(pipeline_->Used());
}

TEST_F(AheadPipelineTest, ATransferThatFailsAloneHoldsUpNoStreamEither) {
  Open(4);
  service_->RefuseRequest(1);
  const OpId refused = pipeline_->Fetch(0, Block(0), 0, {});
  ASSERT_TRUE(pipeline_->Wait(refused, false).ok());
  const auto end = compute_->Record();
  const OpId behind = pipeline_->Submit(0, Block(0), 0, 0);
  pipeline_->Fetch(1, Block(0), 0, {behind, 0});
  EXPECT_EQ(pipeline_->AwaitOperators().id(), ErrorId::kProtocolViolation);
  EXPECT_TRUE(service_->Drive([&] { return compute_->Passed(end); }));
  EXPECT_EQ(pipeline_->WaitAll().id(), ErrorId::kProtocolViolation);
}

// A group of two ranks whose peer never comes; notes what held up the streams when it was given up.
class LostGroup final : public Collective {
 public:
  explicit LostGroup(device::Stream* stream) : stream_(stream) {}
  uint32_t rank() const override { return 0; }
  uint32_t world() const override { return 2; }
  Ticket StartAllGather(const BlockView&) override { return ++last_; }
  Ticket StartReduceScatter(const BlockView&) override { return ++last_; }
  Ticket StartAllToAll(const PartsView&) override { return ++last_; }
  device::Stream* stream() override { return stream_; }
  bool Test(Ticket) override { return lost; }
  Status Wait(Ticket) override { return Status(ErrorId::kCollectiveFailed, "the peer is lost"); }
  void GiveUp(const Status& why) override {
    ++given_up;
    EXPECT_EQ(why.id(), ErrorId::kCollectiveFailed);
    EXPECT_EQ(*done, device::kFlagPoison)
        << "a communicator that is aborted waits for streams that wait for flags";
  }
  Status Barrier() override { return {}; }
  Status SumDoubles(double*, uint64_t) override { return {}; }
  Status Broadcast(void*, uint64_t) override { return {}; }

  bool lost = false;
  int given_up = 0;
  device::Flag* done = nullptr;  // of a transfer in flight

 private:
  device::Stream* stream_;
  Ticket last_ = 0;
};

TEST_F(AheadPipelineTest, StreamsAreLetGoBeforeGroupsAreGivenUp) {
  Open(4);
  LayoutOptions options;
  options.world = 2;
  options.chunk_bytes = 64 * 4;
  const std::vector<ParameterNote> notes{{"p", {64}, 0, 0, false}};
  const ChunkLayout shared = BuildLayout(notes, options).value();
  LostGroup group(service_->OpenStream());
  const CacheStreams streams{service_->device(), compute_, service_->OpenStream()};
  MemoryServer server(&shared);
  FlagChunkService service(&server, {.rcache_bytes = shared.BlockBytes()});
  const auto pipeline = std::make_unique<AheadPipeline>(
      PipelineSetup{&shared, 0, &service, {&group}, &clock_, streams});
  // An operator that has not ended: the server may not begin with the next fetch.
  compute_->WaitFlag(&first_, 1);
  const UseMark use = pipeline->Mark();
  pipeline->Fetch(0, service.attachment().rcache, 0, {0, use});
  group.done = service.FlagsOf(1).done;

  group.lost = true;
  EXPECT_EQ(pipeline->Progress().id(), ErrorId::kCollectiveFailed);
  EXPECT_EQ(pipeline->Progress().id(), ErrorId::kCollectiveFailed);
  EXPECT_EQ(group.given_up, 1) << "once, at the first error";
  first_ = 1;
  service.Leave();
}

TEST_F(AheadPipelineTest, AfterAGroupsErrorNothingIsRequestedThoughTheServerIsThere) {
  Open(4);
  LayoutOptions options;
  options.world = 2;
  options.chunk_bytes = 64 * 4;
  const std::vector<ParameterNote> notes{{"p", {64}, 0, 0, false}};
  const ChunkLayout shared = BuildLayout(notes, options).value();
  testing::ThreadGroup ranks(2, /*on_streams=*/true);
  testing::ThreadCollective group(&ranks, 0, 1, 0, service_->OpenStream());
  const CacheStreams streams{service_->device(), compute_, service_->OpenStream()};
  MemoryServer server(&shared);
  FlagChunkService service(&server, {.rcache_bytes = shared.BlockBytes()});
  const auto pipeline = std::make_unique<AheadPipeline>(
      PipelineSetup{&shared, 0, &service, {&group}, &clock_, streams});
  std::byte* block = service.attachment().rcache;
  const OpId fetched = pipeline->Fetch(0, block, 0, {});
  ASSERT_TRUE(pipeline->Wait(fetched, false).ok());
  ranks.Break();  // the peer never came
  EXPECT_EQ(pipeline->AwaitOperators().id(), ErrorId::kCollectiveFailed);
  EXPECT_EQ(pipeline->Submit(0, block, 0, 0), 0u);
  EXPECT_EQ(pipeline->Fetch(0, block, 0, {}), 0u);
  EXPECT_EQ(service.requests(), 1u);
  EXPECT_EQ(pipeline->WaitAll().id(), ErrorId::kCollectiveFailed);
  service.Leave();
}

}  // namespace ahead_pipeline_test
}  // namespace tidepool::trainer
