#include "memserver/traffic/rcache_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/random.h"

namespace tidepool::memserver {
namespace rcache_map_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

TEST(RcacheMap, AFetchIntoABlockDisplacesWhatWasThere) {
  RcacheMap map;
  EXPECT_THAT(map.Replace(0, 100, 1), IsEmpty());
  EXPECT_THAT(map.Replace(100, 100, 2), IsEmpty());
  EXPECT_THAT(map.Replace(0, 100, 3), ElementsAre(1));
  EXPECT_THAT(map.Replace(50, 100, 4), UnorderedElementsAre(3, 2));
}

TEST(RcacheMap, TheSameChunkAgainIsNotDisplaced) {
  RcacheMap map;
  map.Replace(0, 100, 1);
  EXPECT_THAT(map.Replace(0, 100, 1), IsEmpty());
}

TEST(RcacheMap, AChunkInTwoPlacesIsGoneWhenTheSecondIs) {
  RcacheMap map;
  map.Replace(0, 100, 1);
  map.Replace(100, 100, 1);
  EXPECT_THAT(map.Replace(0, 100, 2), IsEmpty());
  EXPECT_THAT(map.Replace(100, 100, 3), ElementsAre(1));
}

TEST(RcacheMap, AGradientLeavesABlockWithoutAChunk) {
  RcacheMap map;
  map.Replace(0, 100, 1);
  EXPECT_THAT(map.Replace(0, 100, std::nullopt), ElementsAre(1));
  EXPECT_THAT(map.Replace(0, 100, 2), IsEmpty());
}

TEST(RcacheMap, NeighboursThatTouchAreNotDisplaced) {
  RcacheMap map;
  map.Replace(100, 100, 1);
  EXPECT_THAT(map.Replace(0, 100, 2), IsEmpty());
  EXPECT_THAT(map.Replace(200, 1, 3), IsEmpty());
  EXPECT_THAT(map.Replace(199, 1, 4), ElementsAre(1));
}

TEST(RcacheMap, BeyondItsCapacityItForgetsButNeverGrows) {
  RcacheMap map;
  uint64_t displaced = 0;
  for (ChunkId chunk = 0; chunk < RcacheMap::kRangesMax + 10; ++chunk)
    displaced += map.Replace(chunk * 8, 8, chunk).size();
  EXPECT_EQ(displaced, 10u);
}

TEST(RcacheMap, AgreesWithAPlainModel) {
  SplitMix64 random(3);
  RcacheMap map;
  // Begin to length and chunk; what is hit is forgotten whole, as a block is.
  std::map<uint64_t, std::pair<uint64_t, ChunkId>> ranges;
  for (int round = 0; round < 5'000; ++round) {
    const uint64_t begin = random.Below(60), bytes = 1 + random.Below(20);
    const auto chunk = static_cast<ChunkId>(random.Below(8));
    std::set<ChunkId> hit;
    for (auto it = ranges.begin(); it != ranges.end();) {
      const bool overlaps = it->first < begin + bytes && begin < it->first + it->second.first;
      if (overlaps) hit.insert(it->second.second);
      it = overlaps ? ranges.erase(it) : std::next(it);
    }
    ranges[begin] = {bytes, chunk};
    for (const auto& [start, range] : ranges) hit.erase(range.second);
    const auto displaced = map.Replace(begin, bytes, chunk);
    ASSERT_EQ(std::set<ChunkId>(displaced.begin(), displaced.end()), hit) << round;
  }
}

}  // namespace rcache_map_test
}  // namespace tidepool::memserver
