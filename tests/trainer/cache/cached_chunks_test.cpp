// CachedChunks, and ChunkGradients over it: what holds a chunk keeps it from leaving, every change
// of place is told, and what is handed in is zero wherever no gradient came.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/fakes/memory_chunk_service.h"
#include "trainer/cache/cached_chunks.h"
#include "trainer/cache/chunk_gradients.h"
#include "trainer/layout/build_layout.h"

namespace tidepool::trainer {
namespace cached_chunks_test {

using testing::MemoryChunkService;
using testing::MemoryServer;

// Three chunks of two parameters each, with a gap between them, in two blocks; one rank.
class Chunks : public ::testing::Test {
 protected:
  Chunks() {
    std::vector<ParameterNote> notes;
    for (int i = 0; i < 6; ++i)
      notes.push_back({"p" + std::to_string(i), {kElements}, 0, 0, false});
    LayoutOptions options;
    options.chunk_bytes = 2 * kParameterAlignBytes;
    layout_ = BuildLayout(notes, options).value();
    server_ = std::make_unique<MemoryServer>(&layout_);
    service_ =
        std::make_unique<MemoryChunkService>(server_.get(), 0, layout_.RcacheBytes(0, 2), 1, 0);
    chunks_ = std::make_unique<CachedChunks>(
        PipelineSetup{&layout_, 0, service_.get(), {nullptr}, &clock_});
  }

  bool Pin(ChunkId chunk) { return chunks_->Pin({&chunk, 1}); }
  void Unpin(ChunkId chunk) { chunks_->Unpin({&chunk, 1}); }
  void Bring(ChunkId chunk) {
    chunks_->Take(chunk);
    chunks_->Fetch(chunk, {0, 0}, /*ahead=*/false);
    ASSERT_TRUE(chunks_->HandOut(chunk).ok());
  }
  std::vector<ChunkId> ToldOf() {
    std::vector<Move> moves;
    chunks_->TakeMoves(&moves);
    std::vector<ChunkId> chunks;
    for (const Move& move : moves) chunks.push_back(move.chunk);
    return chunks;
  }

  static constexpr int64_t kElements = 5;
  SteadyClock clock_;
  ChunkLayout layout_;
  std::unique_ptr<MemoryServer> server_;
  std::unique_ptr<MemoryChunkService> service_;
  std::unique_ptr<CachedChunks> chunks_;
};

TEST_F(Chunks, WhatAnOperatorOrGradientsHoldIsNoCandidate) {
  Bring(0);
  Bring(1);
  EXPECT_EQ(chunks_->Candidates(), (std::vector<ChunkId>{0, 1}));
  EXPECT_FALSE(chunks_->AnyHeld());
  ASSERT_TRUE(Pin(0));
  chunks_->HoldGradients(1);
  EXPECT_TRUE(chunks_->Candidates().empty());
  Unpin(0);
  EXPECT_EQ(chunks_->Candidates(), (std::vector<ChunkId>{0}));
  EXPECT_TRUE(chunks_->AnyHeld()) << "gradients of chunk 1";
}

TEST_F(Chunks, AChunkIsHeldUntilItsLastOperatorEnds) {
  Bring(0);
  EXPECT_TRUE(Pin(0));
  EXPECT_FALSE(Pin(0)) << "an operator within it brings nothing new";
  Unpin(0);
  EXPECT_TRUE(chunks_->Candidates().empty());
  Unpin(0);
  EXPECT_EQ(chunks_->Candidates(), (std::vector<ChunkId>{0}));
}

TEST_F(Chunks, EveryChangeOfPlaceIsToldOnceAndInOrder) {
  Bring(0);
  Bring(1);
  EXPECT_EQ(ToldOf(), (std::vector<ChunkId>{0, 1}));
  chunks_->Evict(0, 2);
  chunks_->Fetch(2, {0, 0}, /*ahead=*/true);
  EXPECT_EQ(ToldOf(), (std::vector<ChunkId>{0})) << "chunk 2 has not been handed out";
  chunks_->Evict(2, 0);
  EXPECT_TRUE(ToldOf().empty()) << "nobody knew of chunk 2";
  EXPECT_EQ(chunks_->counters().evictions, 2u);
  EXPECT_EQ(chunks_->counters().prefetches, 1u);
}

TEST_F(Chunks, APlaceForGradientsIsZeroAndTheParametersHaveNone) {
  server_->values[0].assign(layout_.chunks[0].elements, 3.0f);
  Bring(0);
  const auto* at = reinterpret_cast<const float*>(chunks_->AddressOf(0));
  EXPECT_EQ(at[0], 3.0f);
  ToldOf();
  ASSERT_TRUE(chunks_->TakeForGradients(0).ok());
  EXPECT_EQ(at[0], 0.0f);
  EXPECT_EQ(ToldOf(), (std::vector<ChunkId>{0}));
  EXPECT_TRUE(chunks_->holds_gradients(0));
}

TEST_F(Chunks, GapsBetweenGradientsAreHandedInAsZeros) {
  for (std::vector<float>& chunk : server_->values) std::fill(chunk.begin(), chunk.end(), 9.0f);
  CachePass pass(chunks_.get(), 0, {.separate_while_recording = false}, {}, {});
  ChunkGradients gradients(chunks_.get(), &pass, 0);
  ASSERT_TRUE(pass.Begin(PassKind::kTrain, 0).ok());
  const std::byte* block = nullptr;
  for (const ParameterId parameter : {0u, 1u}) {
    const auto place = gradients.Place(parameter);
    ASSERT_TRUE(place.ok());
    std::fill_n(reinterpret_cast<float*>(place.value()), kElements, 1.0f);
    if (parameter != 0) continue;
    block = place.value();
    ASSERT_TRUE(gradients.Done(parameter).ok());
  }
  EXPECT_TRUE(chunks_->holds_gradients(0));
  ASSERT_TRUE(gradients.Done(1).ok());
  EXPECT_FALSE(chunks_->has(0)) << "a complete chunk is handed in at once";

  const auto* elements = reinterpret_cast<const float*>(block);
  double sum = 0;
  for (uint64_t i = 0; i < layout_.chunks[0].elements; ++i) sum += elements[i];
  EXPECT_EQ(sum, 2.0 * kElements) << "the block's rest is zeros";
}

}  // namespace cached_chunks_test
}  // namespace tidepool::trainer
