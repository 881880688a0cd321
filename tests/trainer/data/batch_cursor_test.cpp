#include "trainer/data/batch_cursor.h"

#include <numeric>
#include <set>
#include <string>

#include <gtest/gtest.h>

namespace tidepool::trainer {
namespace batch_cursor_test {

// 251 is prime, so a window's first two tokens tell its place among few.
TokenSource Source(uint64_t size) {
  std::string text(size, '\0');
  for (uint64_t i = 0; i < size; ++i) text[i] = static_cast<char>(i % 251);
  return TokenSource(std::make_shared<const std::string>(std::move(text)));
}

BatchCursor MakeCursor(const TokenSource& source, const BatchShape& shape) {
  auto cursor = BatchCursor::Make(source, shape);
  EXPECT_TRUE(cursor.ok()) << cursor.status().Format();
  return std::move(cursor).value();
}

TEST(BatchCursor, TargetsAreTheNextTokens) {
  auto cursor = MakeCursor(Source(1000), {.sequences = 4, .tokens = 16});
  const Batch batch = std::move(cursor.Next()).value();
  ASSERT_EQ(batch.inputs.size(), 64U);
  ASSERT_EQ(batch.targets.size(), 64U);
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(batch.targets[i], (batch.inputs[i] + 1) % 251);
}

TEST(BatchCursor, GlobalBatchIsTheSameForEveryNumberOfRanks) {
  const TokenSource source = Source(5000);
  auto one = MakeCursor(source, {.sequences = 12, .tokens = 8, .rank = 0, .world = 1, .seed = 9});
  for (int step = 0; step < 3; ++step) {
    const Batch whole = std::move(one.Next()).value();
    for (const uint32_t world : {2U, 3U, 4U}) {
      std::vector<int64_t> joined;
      for (uint32_t rank = 0; rank < world; ++rank) {
        auto cursor = MakeCursor(
            source, {.sequences = 12, .tokens = 8, .rank = rank, .world = world, .seed = 9});
        cursor.Seek(12 * static_cast<uint64_t>(step));
        const Batch part = std::move(cursor.Next()).value();
        EXPECT_EQ(part.sequences, 12 / world);
        joined.insert(joined.end(), part.inputs.begin(), part.inputs.end());
      }
      EXPECT_EQ(joined, whole.inputs) << world;
    }
  }
}

TEST(BatchCursor, ResumesFromItsPosition) {
  auto cursor =
      MakeCursor(Source(3000), {.sequences = 2, .tokens = 32, .rank = 0, .world = 1, .seed = 4});
  std::vector<std::vector<int64_t>> inputs;
  for (int i = 0; i < 100; ++i) inputs.push_back(std::move(cursor.Next()).value().inputs);
  EXPECT_EQ(cursor.position(), 200U);
  auto again =
      MakeCursor(Source(3000), {.sequences = 2, .tokens = 32, .rank = 0, .world = 1, .seed = 4});
  again.Seek(2 * 57);
  EXPECT_EQ(std::move(again.Next()).value().inputs, inputs[57]);
  auto other =
      MakeCursor(Source(3000), {.sequences = 2, .tokens = 32, .rank = 0, .world = 1, .seed = 5});
  EXPECT_NE(std::move(other.Next()).value().inputs, inputs[0]);
}

TEST(BatchCursor, ThePositionMeansTheSameForEverySizeOfABatch) {
  auto small =
      MakeCursor(Source(3000), {.sequences = 2, .tokens = 32, .rank = 0, .world = 1, .seed = 4});
  auto large =
      MakeCursor(Source(3000), {.sequences = 6, .tokens = 32, .rank = 0, .world = 1, .seed = 4});
  small.Seek(30);
  large.Seek(30);
  std::vector<int64_t> three;
  for (int i = 0; i < 3; ++i) {
    const Batch batch = std::move(small.Next()).value();
    three.insert(three.end(), batch.inputs.begin(), batch.inputs.end());
  }
  EXPECT_EQ(std::move(large.Next()).value().inputs, three);
  EXPECT_EQ(small.position(), large.position());
}

TEST(BatchCursor, AnEpochReadsEveryWindowOnceInAnOrderOfItsOwn) {
  // Below 251 each token tells its place.
  for (const uint64_t size : {9ULL, 17ULL, 100ULL, 250ULL}) {
    const BatchShape shape{.sequences = 1, .tokens = 8, .rank = 0, .world = 1, .seed = 3};
    auto cursor = MakeCursor(Source(size), shape);
    const uint64_t windows = cursor.batches_per_epoch();
    EXPECT_GE(windows * 8 + 16, size);
    std::vector<std::vector<int64_t>> orders;
    for (int epoch = 0; epoch < 2; ++epoch) {
      std::set<int64_t> starts;
      std::vector<int64_t> order;
      for (uint64_t i = 0; i < windows; ++i) {
        const int64_t start = std::move(cursor.Next()).value().inputs[0];
        starts.insert(start);
        order.push_back(start);
      }
      EXPECT_EQ(starts.size(), windows);
      EXPECT_EQ(*starts.rbegin() - *starts.begin(), static_cast<int64_t>((windows - 1) * 8));
      orders.push_back(order);
    }
    if (windows > 8) {
      EXPECT_NE(orders[0], orders[1]);
    }
  }
}

TEST(BatchCursor, UnshuffledReadsInOrderAndRoundAgain) {
  auto cursor = MakeCursor(
      Source(41),
      {.sequences = 2, .tokens = 10, .rank = 0, .world = 1, .seed = 1, .shuffled = false});
  std::vector<int64_t> starts;
  for (int i = 0; i < 3; ++i) {
    const Batch batch = std::move(cursor.Next()).value();
    starts.push_back(batch.inputs[0]);
    starts.push_back(batch.inputs[10]);
  }
  EXPECT_EQ(starts, (std::vector<int64_t>{0, 10, 20, 30, 0, 10}));
}

TEST(BatchCursor, RefusesWhatCannotBeShared) {
  EXPECT_EQ(BatchCursor::Make(Source(100), {.sequences = 8, .tokens = 8, .rank = 0, .world = 3})
                .status()
                .id(),
            ErrorId::kUsageError);
  EXPECT_EQ(BatchCursor::Make(Source(8), {.sequences = 8, .tokens = 8}).status().id(),
            ErrorId::kDataBad);
  EXPECT_TRUE(BatchCursor::Make(Source(9), {.sequences = 8, .tokens = 8}).ok());
}

}  // namespace batch_cursor_test
}  // namespace tidepool::trainer
