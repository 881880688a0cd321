// SearchChunkSize against trying every size.
#include "trainer/layout/chunk_size.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace tidepool::trainer {
namespace chunk_size_test {

// Packs without arithmetic: fills a list of remaining rooms.
uint64_t WasteByHand(const std::vector<uint64_t>& run, uint64_t size) {
  std::vector<uint64_t> rooms;
  for (const uint64_t parameter : run) {
    if (rooms.empty() || rooms.back() < parameter) rooms.push_back(size);
    rooms.back() -= parameter;
  }
  uint64_t waste = 0;
  for (const uint64_t room : rooms) waste += room;
  return waste;
}

TEST(ChunkSize, RepeatedLayersGetASizeWithoutWaste) {
  ChunkSizeSearch search;
  std::vector<uint64_t> run;
  for (int layer = 0; layer < 48; ++layer) run.insert(run.end(), {64, 64, 12288, 16384});
  search.runs = {run};
  const ChunkSizeChoice choice = SearchChunkSize(search);
  EXPECT_EQ(choice.best.waste_elements, 0u);
  EXPECT_EQ(choice.best.elements % (64 + 64 + 12288 + 16384), 0u);
  EXPECT_TRUE(choice.searched);
  EXPECT_NE(choice.reason.find("0.00 %"), std::string::npos);
}

TEST(ChunkSize, RunnersUpAreNoBetter) {
  ChunkSizeSearch search;
  search.runs = {{1600, 320, 4800, 6400, 16, 1600, 320, 4800, 6400, 16}, {3200, 3200, 3200}};
  search.chunks_min = 2;
  const ChunkSizeChoice choice = SearchChunkSize(search);
  ASSERT_EQ(choice.runners_up.size(), 3u);
  for (const ChunkSizeTrial& trial : choice.runners_up)
    EXPECT_GE(trial.waste_elements, choice.best.waste_elements);
}

TEST(ChunkSize, TheLargestParameterOverrulesTheUpperBound) {
  ChunkSizeSearch search;
  search.runs = {{100'000, 16, 16, 60'000}};
  search.elements_max = 4096;
  search.multiple = 48;
  const ChunkSizeChoice choice = SearchChunkSize(search);
  EXPECT_EQ(choice.best.elements, 100'032u);  // 100,000 + 2 x 16, a multiple of 48
}

TEST(ChunkSize, ThousandsOfParametersAreSearchedInBoundedWork) {
  ChunkSizeSearch search;
  search.runs.emplace_back();
  for (uint64_t i = 0; i < 60'000; ++i) search.runs[0].push_back(16 * (1 + i * i % 911));
  const ChunkSizeChoice choice = SearchChunkSize(search);
  EXPECT_LE(choice.candidates * 60'000, 1u << 24);
  EXPECT_LT(choice.waste_share, 0.01);
}

TEST(ChunkSize, NoTriedSizeAndNoGridSizeIsBetter) {
  EXPECT_TRUE(rc::check("least waste among the natural sizes", [] {
    const auto units = *rc::gen::nonEmpty(
        rc::gen::container<std::vector<uint64_t>>(rc::gen::inRange<uint64_t>(1, 40)));
    std::vector<uint64_t> run;
    for (const uint64_t unit : units) run.push_back(unit * 16);
    ChunkSizeSearch search;
    search.runs = {run};
    search.chunks_min = *rc::gen::inRange<uint64_t>(1, 6);
    const ChunkSizeChoice choice = SearchChunkSize(search);
    RC_ASSERT(WasteByHand(run, choice.best.elements) == choice.best.waste_elements);
    // Totals are small here, so the grid has every multiple of 16: the search is exhaustive.
    uint64_t total = 0, largest = 0;
    for (const uint64_t size : run) {
      total += size;
      largest = std::max(largest, size);
    }
    RC_PRE(total / 128 < 16);
    for (uint64_t size = largest; size <= total / search.chunks_min; size += 16) {
      RC_ASSERT(WasteByHand(run, size) >= choice.best.waste_elements);
    }
  }));
}

}  // namespace chunk_size_test
}  // namespace tidepool::trainer
