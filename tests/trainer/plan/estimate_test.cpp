// EstimateMemory on models whose sums can be done by hand.
#include "trainer/plan/estimate.h"

#include <gtest/gtest.h>

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
  EXPECT_DOUBLE_EQ(EstimateMemory(layout, {1, 0}).pool_bytes_per_parameter, 16.0);  // 12 + 2 + 2: PatrickStar's 14 and the gradient
  EXPECT_DOUBLE_EQ(EstimateMemory(layout, {2, 0}).pool_bytes_per_parameter, 18.0);
}

TEST(EstimateMemory, BlocksAreWhatTheRcacheHasBesideResidentChunks) {
  const ChunkLayout layout = Model(DType::kF32, 2);
  const uint64_t block = layout.BlockBytes();
  const MemoryEstimate estimate = EstimateMemory(layout, {1, layout.RcacheBytes(0, 5) + block - 1});
  EXPECT_EQ(estimate.blocks, 5u);
  EXPECT_DOUBLE_EQ(estimate.evictable_share, 5.0 / 16);
  EXPECT_EQ(EstimateMemory(layout, {1, 0}).rcache_bytes, estimate.resident_bytes);
}

}  // namespace estimate_test
}  // namespace tidepool::trainer
