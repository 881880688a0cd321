// ParameterCache after a failure, and when it is called out of turn: an error, always the same one,
// and nothing is changed.
#include <algorithm>
#include <memory>
#include <utility>

#include <gtest/gtest.h>

#include "base/units.h"
#include "tests/fakes/memory_chunk_service.h"
#include "tests/fakes/thread_collective.h"
#include "trainer/cache/parameter_cache.h"
#include "trainer/layout/build_layout.h"

namespace tidepool::trainer {
namespace cache_errors_test {

using testing::MemoryChunkService;
using testing::MemoryServer;

// Eight chunks of one parameter each, one rank.
class CacheErrors : public ::testing::Test {
 protected:
  CacheErrors() {
    std::vector<ParameterNote> notes;
    for (int i = 0; i < 8; ++i) notes.push_back({"p" + std::to_string(i), {64}, 0, 0, false});
    LayoutOptions options;
    options.chunk_bytes = 64 * 4;
    layout_ = BuildLayout(notes, options).value();
    server_ = std::make_unique<MemoryServer>(&layout_);
    service_ =
        std::make_unique<MemoryChunkService>(server_.get(), 0, layout_.RcacheBytes(0, 2), 1, 2);
  }

  Result<std::unique_ptr<ParameterCache>> Open(std::vector<Collective*> groups = {nullptr}) {
    CacheSetup setup;
    setup.layout = &layout_;
    setup.service = service_.get();
    setup.groups = std::move(groups);
    setup.clock = &clock_;
    setup.options.separate_while_recording = false;
    return ParameterCache::Create(std::move(setup));
  }

  static Status Acquire(ParameterCache* cache, ChunkId chunk) {
    return cache->Acquire({&chunk, 1});
  }
  static Status Release(ParameterCache* cache, ChunkId chunk) {
    return cache->Release({&chunk, 1});
  }

  static Status Use(ParameterCache* cache, ParameterId parameter) {
    const Status begun = cache->BeginUse({&parameter, 1});
    return begun.ok() ? cache->EndUse({&parameter, 1}) : begun;
  }

  ChunkLayout layout_;
  std::unique_ptr<MemoryServer> server_;
  std::unique_ptr<MemoryChunkService> service_;
  SteadyClock clock_;
};

// Ranks 0 and 1 share the first group; what the others may be for both to meet in the same
// collectives.
class DataGroups : public CacheErrors {
 protected:
  // Two shared parameters of a chunk each, and `own` ones of each further group.
  Status OpenWith(std::vector<std::vector<Rank>> groups, std::vector<uint32_t> own, Rank rank = 0) {
    std::vector<ParameterNote> notes;
    const auto add = [&notes](uint32_t group) {
      notes.push_back({"p" + std::to_string(notes.size()), {64}, 0, group, false});
    };
    for (uint32_t group = 0; group < groups.size(); ++group) {
      for (uint32_t i = 0; i < own[group]; ++i) add(group);
    }
    LayoutOptions options;
    options.world = 2;
    options.chunk_bytes = 64 * 4;
    options.data_groups = std::move(groups);
    layout_ = BuildLayout(notes, options).value();
    server_ = std::make_unique<MemoryServer>(&layout_);
    service_ = std::make_unique<MemoryChunkService>(server_.get(), rank,
                                                    layout_.RcacheBytes(rank, 2), 1, 2);
    CacheSetup setup;
    setup.layout = &layout_;
    setup.rank = rank;
    setup.service = service_.get();
    for (const auto& members : layout_.data_groups) {
      const auto found = std::find(members.begin(), members.end(), rank);
      shared_.push_back(
          std::make_unique<testing::ThreadGroup>(static_cast<uint32_t>(members.size())));
      ranks_.push_back(std::make_unique<testing::ThreadCollective>(
          shared_.back().get(), static_cast<uint32_t>(found - members.begin()), 1, 0));
      setup.groups.push_back(found == members.end() || members.size() == 1 ? nullptr
                                                                           : ranks_.back().get());
    }
    if (!gives_groups_) setup.groups.clear();
    setup.clock = &clock_;
    return ParameterCache::Create(std::move(setup)).status();
  }

  bool gives_groups_ = true;

  std::vector<std::unique_ptr<testing::ThreadGroup>> shared_;
  std::vector<std::unique_ptr<testing::ThreadCollective>> ranks_;
};

TEST_F(DataGroups, OfRanksThatWouldDecideAlikeAreTaken) {
  EXPECT_TRUE(OpenWith({{0, 1}}, {3}).ok());
  EXPECT_TRUE(OpenWith({{0, 1}, {0}, {1}}, {3, 2, 2}).ok());
  EXPECT_TRUE(OpenWith({{0, 1}, {0}, {1}}, {3, 2, 2}, 1).ok());
  EXPECT_TRUE(OpenWith({{0}, {1}}, {3, 1}).ok()) << "ranks that share nothing may differ";
}

TEST_F(DataGroups, OfRanksThatWouldDecideApartAreRefused) {
  const auto expect_refused = [](const Status& status) {
    EXPECT_EQ(status.id(), ErrorId::kUsageError) << status.Format();
    EXPECT_NE(status.what().find("ranks 0 and 1 share a data group"), std::string::npos)
        << status.what();
  };
  expect_refused(OpenWith({{0, 1}, {0}}, {3, 1}));
  expect_refused(OpenWith({{0, 1}, {0}, {1}}, {3, 2, 3}));
  // In order of chunks: before the shared ones, and behind them.
  expect_refused(OpenWith({{0}, {0, 1}, {1}}, {2, 3, 2}));
}

TEST_F(CacheErrors, ASingleRankNeedsNoGroups) {
  EXPECT_TRUE(Open({}).ok());
}

TEST_F(DataGroups, ASharedOneWithoutACollectiveIsNamed) {
  gives_groups_ = false;
  const Status refused = OpenWith({{0, 1}}, {3});
  EXPECT_EQ(refused.id(), ErrorId::kUsageError);
  EXPECT_EQ(refused.what(), "data group 0 has 2 ranks, and no collective is given for it");
}

TEST_F(CacheErrors, NoRoomForOneBlockIsRefusedWithTheSizeThatWorks) {
  service_ = std::make_unique<MemoryChunkService>(server_.get(), 0, layout_.BlockBytes() - 1, 1, 0);
  const Status refused = Open().status();
  EXPECT_EQ(refused.id(), ErrorId::kRcacheTooSmall);
  EXPECT_NE(refused.Format().find("at least " + std::to_string(layout_.BlockBytes())),
            std::string::npos);
  service_ = std::make_unique<MemoryChunkService>(server_.get(), 0, layout_.BlockBytes(), 1, 0);
  EXPECT_TRUE(Open().ok());
}

TEST_F(CacheErrors, AServerThatGoesAwayLatches) {
  service_->FailFrom(3);
  const auto cache = std::move(Open()).value();
  ASSERT_TRUE(cache->BeginPass(PassKind::kTrain, 0).ok());
  for (const ChunkId chunk : {0u, 1u}) {
    ASSERT_TRUE(Acquire(cache.get(), chunk).ok());
    ASSERT_TRUE(Release(cache.get(), chunk).ok());
  }
  std::vector<Move> moves;
  cache->TakeMoves(&moves);
  EXPECT_EQ(moves.size(), 2u);
  EXPECT_EQ(Acquire(cache.get(), 2).id(), ErrorId::kServerGone);
  EXPECT_EQ(Acquire(cache.get(), 0).id(), ErrorId::kServerGone);
  EXPECT_EQ(cache->GradientPlace(0).status().id(), ErrorId::kServerGone);
  EXPECT_EQ(cache->GradientDone(0).id(), ErrorId::kServerGone);
  EXPECT_EQ(cache->BorrowBlock(0).status().id(), ErrorId::kServerGone);
  EXPECT_EQ(cache->SubmitBorrowed(0).id(), ErrorId::kServerGone);
  EXPECT_EQ(cache->FinishBackward(0).id(), ErrorId::kServerGone);
  EXPECT_EQ(cache->FinishStep().id(), ErrorId::kServerGone);
  EXPECT_EQ(cache->BeginPass(PassKind::kTrain, 1).id(), ErrorId::kServerGone);
  EXPECT_EQ(Use(cache.get(), 0).id(), ErrorId::kServerGone);
  EXPECT_EQ(cache->Progress().id(), ErrorId::kServerGone);
  EXPECT_EQ(server_->submits, 0u);
}

TEST_F(CacheErrors, ASubmissionThatTheServerRefusesEndsTheStep) {
  const auto cache = std::move(Open()).value();
  ASSERT_TRUE(cache->BeginPass(PassKind::kTrain, 0).ok());
  for (ParameterId id = 0; id < 8; ++id) {
    ASSERT_TRUE(cache->GradientPlace(id).ok());
    if (id == 7) break;
    ASSERT_TRUE(cache->GradientDone(id).ok());
  }
  server_->version = 1;  // from here on these gradients are of a version that is gone
  const Status last = cache->GradientDone(7);
  EXPECT_TRUE(last.ok() || last.id() == ErrorId::kProtocolViolation);
  EXPECT_EQ(cache->FinishStep().id(), ErrorId::kProtocolViolation);
}

TEST_F(CacheErrors, CallsOutsideAPassAreNamed) {
  const auto cache = std::move(Open()).value();
  const Status status = Acquire(cache.get(), 0);
  EXPECT_EQ(status.id(), ErrorId::kChunkNotReady);
  EXPECT_NE(status.what().find("Acquire"), std::string::npos);
}

TEST_F(CacheErrors, GradientsHaveNoPlaceInAnEvaluation) {
  const auto cache = std::move(Open()).value();
  ASSERT_TRUE(cache->BeginPass(PassKind::kEvaluation, 0).ok());
  EXPECT_EQ(cache->GradientPlace(0).status().id(), ErrorId::kChunkNotReady);
}

TEST_F(CacheErrors, APassDoesNotBeginUnderAnOperator) {
  const auto cache = std::move(Open()).value();
  ASSERT_TRUE(cache->BeginPass(PassKind::kEvaluation, 0).ok());
  ASSERT_TRUE(Acquire(cache.get(), 0).ok());
  EXPECT_EQ(cache->BeginPass(PassKind::kEvaluation, 1).id(), ErrorId::kChunkNotReady);
}

TEST_F(CacheErrors, UseOfAParameterThatHoldsItsGradientNamesIt) {
  const auto cache = std::move(Open()).value();
  ASSERT_TRUE(cache->BeginPass(PassKind::kTrain, 0).ok());
  ASSERT_TRUE(Acquire(cache.get(), 3).ok());
  ASSERT_TRUE(Use(cache.get(), 3).ok());
  ASSERT_TRUE(cache->GradientPlace(3).ok());
  ASSERT_TRUE(Use(cache.get(), 3).ok());  // its gradient has a place, but is not there yet
  ASSERT_TRUE(Release(cache.get(), 3).ok());
  ASSERT_TRUE(cache->GradientDone(3).ok());
  const Status status = Use(cache.get(), 3);
  EXPECT_EQ(status.id(), ErrorId::kTensorStateIllegal);
  EXPECT_NE(status.what().find("p3"), std::string::npos);
}

TEST_F(CacheErrors, TheSameVersionStaysInTheRcacheANewOneDoesNot) {
  const auto cache = std::move(Open()).value();
  for (const int pass : {0, 1}) {
    ASSERT_TRUE(cache->BeginPass(PassKind::kEvaluation, 0).ok());
    ASSERT_TRUE(Acquire(cache.get(), 5).ok());
    ASSERT_TRUE(Release(cache.get(), 5).ok());
    EXPECT_EQ(cache->counters().misses, 1u) << pass;
  }
  server_->version = 1;
  ASSERT_TRUE(cache->BeginPass(PassKind::kEvaluation, 1).ok());
  std::vector<Move> moves;
  cache->TakeMoves(&moves);
  ASSERT_EQ(moves.size(), 2u);
  EXPECT_EQ(moves.back().block, nullptr);
  ASSERT_TRUE(Acquire(cache.get(), 5).ok());
  EXPECT_EQ(cache->counters().misses + cache->counters().prefetches, 2u);
}

}  // namespace cache_errors_test
}  // namespace tidepool::trainer
