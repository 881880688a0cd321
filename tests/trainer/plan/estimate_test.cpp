// EstimateMemory on models whose sums can be done by hand.
#include "trainer/plan/estimate.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "base/formats/plane_slack.h"
#include "base/units.h"
#include "trainer/layout/build_layout.h"

namespace tidepool::trainer {
namespace estimate_test {

ChunkLayout Model(DType dtype, uint32_t world) {
  std::vector<ParameterNote> notes{{"wte", {4096, 16}, 0, 0, true}};
  for (int i = 0; i < 16; ++i) notes.push_back({"p" + std::to_string(i), {64, 64}, 0, 0, false});
  LayoutOptions options;
  options.dtype = dtype;
  options.world = world;
  options.chunk_bytes = 64 * 64 * BytesOf(dtype);
  return BuildLayout(notes, options).value();
}

TEST(EstimateMemory, Fp32NeedsSixteenBytesAParameter) {
  const MemoryEstimate estimate = EstimateMemory(Model(DType::kF32, 1), {1, 1u << 20});
  EXPECT_EQ(estimate.parameters, 4096 * 16 + 16 * 4096u);
  EXPECT_EQ(estimate.padding_bytes, 0u);
  EXPECT_EQ(estimate.param16, 0u);
  EXPECT_DOUBLE_EQ(estimate.pool_bytes_per_parameter, 16.0);
  EXPECT_EQ(estimate.resident_bytes, 4096 * 16 * 4u);
  EXPECT_EQ(estimate.blocks, 16u);  // 768 KiB are left, more than the model can use
  EXPECT_DOUBLE_EQ(estimate.resident_share, 0.5);
}

TEST(EstimateMemory, SixteenBitNeedsSixteenBytesAndTwoMoreWithAccumulation) {
  const ChunkLayout layout = Model(DType::kBF16, 2);
  // 12 + 2 + 2: PatrickStar's 14 and the gradient.
  EXPECT_DOUBLE_EQ(EstimateMemory(layout, {1, 0}).pool_bytes_per_parameter, 16.0);
  EXPECT_DOUBLE_EQ(EstimateMemory(layout, {2, 0}).pool_bytes_per_parameter, 18.0);
}

TEST(EstimateMemory, AnFp32ChunkOfA16BitJobHasFp32StatesAndNoCopy) {
  std::vector<ParameterNote> notes{{"wte", {4096, 16}, 0, 0, true},
                                   {"router", {64, 64}, 0, 0, true}};
  notes[1].dtype = DType::kF32;
  LayoutOptions options;
  options.dtype = DType::kBF16;
  EstimateOptions split;
  split.optimizer.states = StateForm::kSplit8;
  const MemoryEstimate estimate = EstimateMemory(BuildLayout(notes, options).value(), split);
  EXPECT_EQ(estimate.master, 4096 * 16 * 2 + 64 * 64 * 4u);
  EXPECT_EQ(estimate.param16, 4096 * 16 * 2u);
  EXPECT_EQ(estimate.gradient, 4096 * 16 * 2 + 64 * 64 * 4u);
  EXPECT_EQ(estimate.momentum,
            PooledBytes(MomentBytes(StateForm::kSplit8, 4096 * 16)) + 64 * 64 * 4u);
}

TEST(EstimateMemory, BlocksAreWhatTheRcacheHasBesideResidentChunks) {
  const ChunkLayout layout = Model(DType::kF32, 2);
  const uint64_t block = layout.BlockBytes();
  const MemoryEstimate estimate = EstimateMemory(layout, {1, layout.RcacheBytes(0, 5) + block - 1});
  EXPECT_EQ(estimate.blocks, 5u);
  EXPECT_DOUBLE_EQ(estimate.evictable_share, 5.0 / 16);
  EXPECT_EQ(EstimateMemory(layout, {1, 0}).rcache_bytes, estimate.resident_bytes);
}

TEST(EstimateMemory, ExchangesNeedTheLargestBlockOfEachGroupOnTheRankThatIsInMost) {
  std::vector<ParameterNote> notes{{"dense", {64, 64}, 0, 0, false},
                                   {"experts", {32, 64}, 1, 0, false},
                                   {"own", {256, 64}, 2, 0, false}};
  LayoutOptions options;
  options.world = 3;
  options.data_groups = {{0, 1, 2}, {1, 2}, {0}};
  options.chunk_bytes = 256 * 64 * sizeof(float);
  const ChunkLayout layout = BuildLayout(notes, options).value();
  uint64_t largest[3] = {};
  for (ChunkId chunk = 0; chunk < layout.chunks.size(); ++chunk) {
    uint64_t& of_group = largest[layout.chunks[chunk].data_group];
    of_group = std::max(of_group, layout.ChunkBytes(chunk));
  }
  const MemoryEstimate estimate = EstimateMemory(layout, {.parts_at_once = 2, .staged_at_once = 4});
  EXPECT_EQ(estimate.parts_bytes, 2 * (largest[0] + largest[1]))
      << "a group of one rank exchanges nothing";
  EXPECT_EQ(estimate.staging_bytes,
            4 * (RoundUp(largest[0], kPageBytes) + RoundUp(largest[1], kPageBytes)));
  EXPECT_EQ(
      EstimateMemory(Model(DType::kF32, 1), {.parts_at_once = 2, .staged_at_once = 4}).parts_bytes,
      0u);
}

}  // namespace estimate_test
}  // namespace tidepool::trainer
