// Marks in the compute stream: one where the chunk changes, not one an operator; a block whose last
// use has none yet is not given away early.
#include <gtest/gtest.h>

#include <memory>

#include "tests/fakes/flag_chunk_service.h"
#include "trainer/cache/parameter_cache.h"
#include "trainer/layout/build_layout.h"

namespace tidepool::trainer {
namespace use_marks_test {

using testing::FlagChunkService;
using testing::MemoryServer;

// The first candidate.
class FirstGoes final : public EvictionPolicy {
 public:
  const char* name() const override { return "first"; }
  void Used(ChunkId, uint64_t) override {}
  ChunkId Victim(std::span<const ChunkId> candidates, uint64_t) override {
    return candidates.front();
  }
};

// Three chunks of one parameter each, in two blocks.
class UseMarks : public ::testing::Test {
 protected:
  UseMarks() {
    std::vector<ParameterNote> notes;
    for (int i = 0; i < 3; ++i) notes.push_back({"p" + std::to_string(i), {64}, 0, 0, false});
    LayoutOptions options;
    options.chunk_bytes = 64 * 4;
    layout_ = BuildLayout(notes, options).value();
    server_ = std::make_unique<MemoryServer>(&layout_);
    service_ = std::make_unique<FlagChunkService>(
        server_.get(), testing::FlagServiceSetup{.rcache_bytes = 2 * layout_.BlockBytes()});
    compute_ = service_->OpenStream();
    CacheSetup setup;
    setup.layout = &layout_;
    setup.service = service_.get();
    setup.groups = {nullptr};
    setup.clock = &clock_;
    setup.options.prefetch_depth = 0;
    setup.policies.recording = std::make_unique<FirstGoes>();
    setup.streams = {service_->device(), compute_, service_->OpenStream()};
    cache_ = std::move(ParameterCache::Create(std::move(setup))).value();
    EXPECT_TRUE(cache_->BeginPass(PassKind::kEvaluation, 0).ok());
  }
  ~UseMarks() override { service_->Leave(); }

  void Use(ChunkId chunk) {
    ASSERT_TRUE(cache_->Acquire({&chunk, 1}).ok());
    ASSERT_TRUE(cache_->Release({&chunk, 1}).ok());
  }
  // Markers that were put into the compute stream by what is done.
  template <typename Work>
  uint64_t MarksOf(const Work& work) {
    const device::Stream::Marker before = compute_->Record();
    work();
    return compute_->Record() - before - 1;
  }
  bool Ready(client::Ticket ticket) {
    const client::TicketFlags flags = service_->FlagsOf(ticket);
    return *flags.ready == flags.value;
  }

  SteadyClock clock_;
  ChunkLayout layout_;
  std::unique_ptr<MemoryServer> server_;
  std::unique_ptr<FlagChunkService> service_;
  device::Stream* compute_ = nullptr;
  device::Flag ends_ = 0;  // an operator
  std::unique_ptr<ParameterCache> cache_;
};

TEST_F(UseMarks, OperatorsThatFollowEachOtherOnOneChunkShareOne) {
  Use(0);
  EXPECT_EQ(MarksOf([&] {
              for (int i = 0; i < 4; ++i) Use(0);
            }),
            0u);
  EXPECT_EQ(MarksOf([&] { Use(1); }), 1u) << "the chunk changes";
  EXPECT_EQ(MarksOf([&] { Use(1); }), 0u);
}

TEST_F(UseMarks, ThereIsOneNowAndThenSoThatTheCpuCanBeHeldBack) {
  EXPECT_EQ(MarksOf([&] {
              for (uint64_t i = 0; i < 4 * kOperatorsAMark; ++i) Use(0);
            }),
            4u);
}

TEST_F(UseMarks, ABlockWhoseLastUseHasNoneYetIsGivenAwayBehindIt) {
  Use(0);
  Use(1);
  const ChunkId last = 0;
  ASSERT_TRUE(cache_->Acquire({&last, 1}).ok());
  compute_->WaitFlag(&ends_, 1);  // an operator that has not ended
  ASSERT_TRUE(cache_->Release({&last, 1}).ok());
  Use(2);  // in its place
  EXPECT_FALSE(service_->Drive([] { return false; }));
  EXPECT_FALSE(Ready(3));
  ends_ = 1;
  EXPECT_FALSE(service_->Drive([] { return false; }));
  EXPECT_TRUE(Ready(3));
}

}  // namespace use_marks_test
}  // namespace tidepool::trainer
