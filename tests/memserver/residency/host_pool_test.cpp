#include "memserver/residency/pool/host_pool.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "base/point.h"
#include "base/random.h"
#include <gtest/gtest.h>
#include "memserver/residency/pool/extent_allocator.h"
#include "tests/fakes/real_clock.h"

namespace tidepool::memserver {
namespace host_pool_test {

const MemoryBudget kPlenty{uint64_t{1} << 40, uint64_t{1} << 40, "the test"};

HostPoolOptions SmallPool(uint64_t bytes) {
  HostPoolOptions options;
  options.bytes = bytes;
  options.touch_threads = 2;
  return options;
}

TEST(ExtentAllocator, TakesTheFirstThatFitsAndMergesNeighbours) {
  const uint64_t sizes[] = {8 * kPageBytes};
  ExtentAllocator allocator(sizes);
  EXPECT_EQ(allocator.Take(2 * kPageBytes), 0u);
  EXPECT_EQ(allocator.Take(2 * kPageBytes), 2 * kPageBytes);
  EXPECT_EQ(allocator.Take(4 * kPageBytes), 4 * kPageBytes);
  EXPECT_EQ(allocator.Take(kPageBytes), std::nullopt);
  allocator.Release(0, 2 * kPageBytes);
  allocator.Release(4 * kPageBytes, 4 * kPageBytes);
  EXPECT_EQ(allocator.largest_free_bytes(), 4 * kPageBytes);
  EXPECT_EQ(allocator.Take(3 * kPageBytes), 4 * kPageBytes);
  allocator.Release(4 * kPageBytes, 3 * kPageBytes);
  allocator.Release(2 * kPageBytes, 2 * kPageBytes);
  EXPECT_EQ(allocator.largest_free_bytes(), 8 * kPageBytes);
}

TEST(ExtentAllocator, NeverCrossesThePiecesBorder) {
  const uint64_t sizes[] = {3 * kPageBytes, 3 * kPageBytes};
  ExtentAllocator allocator(sizes);
  EXPECT_EQ(allocator.Take(2 * kPageBytes), 0u);
  EXPECT_EQ(allocator.Take(2 * kPageBytes), 3 * kPageBytes);
  EXPECT_EQ(allocator.Take(2 * kPageBytes), std::nullopt);
  EXPECT_EQ(allocator.free_bytes(), 2 * kPageBytes);
  allocator.Release(0, 2 * kPageBytes);
  allocator.Release(3 * kPageBytes, 2 * kPageBytes);
  EXPECT_EQ(allocator.largest_free_bytes(), 3 * kPageBytes);
}

// Two pages of a head, and `parts` parts of three pages, in pieces of one and two.
RunWants PartsOfThree(uint64_t parts) {
  RunWants wants;
  wants.singles = {2 * kPageBytes};
  wants.parts = parts;
  wants.bytes_from = [parts](uint64_t part) { return (parts - part) * 3 * kPageBytes; };
  wants.split = [](uint64_t, std::vector<uint64_t>* pieces) {
    pieces->insert(pieces->end(), {kPageBytes, 2 * kPageBytes});
  };
  return wants;
}

TEST(TakeRuns, TakesTheSmallestRangeThatHoldsAll) {
  const uint64_t sizes[] = {10 * kPageBytes, 3000 * kPageBytes, 3100 * kPageBytes, 2 * kPageBytes};
  ExtentAllocator allocator(sizes);
  std::vector<FreeRange> runs;
  ASSERT_TRUE(TakeRuns(PartsOfThree(1000), &allocator, &runs));
  ASSERT_EQ(runs.size(), 2U) << "the head, and all parts";
  EXPECT_EQ(runs[0].offset, 6110 * kPageBytes);
  EXPECT_EQ(runs[1].offset, 10 * kPageBytes);
  EXPECT_EQ(runs[1].bytes, 3000 * kPageBytes);
}

TEST(TakeRuns, GivesTheLargestRangesAsManyPartsAsFit) {
  const uint64_t sizes[] = {2 * kPageBytes, 11 * kPageBytes, 8 * kPageBytes, 2000 * kPageBytes};
  ExtentAllocator allocator(sizes);
  std::vector<FreeRange> runs;
  ASSERT_TRUE(TakeRuns(PartsOfThree(670), &allocator, &runs));
  const uint64_t pages[] = {2, 666 * 3, 9, 3};
  const uint64_t begins[] = {0, 21, 2, 13};
  ASSERT_EQ(runs.size(), 4U);
  for (size_t i = 0; i < runs.size(); ++i) {
    EXPECT_EQ(runs[i].bytes, pages[i] * kPageBytes) << i;
    EXPECT_EQ(runs[i].offset, begins[i] * kPageBytes) << i;
  }
  EXPECT_EQ(allocator.free_bytes(), (2021 - 2012) * kPageBytes);
  for (const FreeRange& run : runs) allocator.Release(run.offset, run.bytes);
  EXPECT_EQ(allocator.largest_free_bytes(), 2000 * kPageBytes);
}

TEST(TakeRuns, SplitsThePartsForWhichNoRangeIsLargeEnough) {
  const uint64_t sizes[] = {4 * kPageBytes, 5 * kPageBytes, 2 * kPageBytes};
  ExtentAllocator allocator(sizes);
  std::vector<FreeRange> runs;
  ASSERT_TRUE(TakeRuns(PartsOfThree(3), &allocator, &runs)) << "to the last page";
  EXPECT_EQ(allocator.free_bytes(), 0U);
  EXPECT_EQ(runs.size(), 5U);
  for (const FreeRange& run : runs) allocator.Release(run.offset, run.bytes);
  EXPECT_EQ(allocator.free_bytes(), 11 * kPageBytes);
}

// Ranges that were chosen while it lives.
class Choices {
 public:
  Choices() {
    SetPointHook([this](const char* hit) {
      count_ += std::string_view(hit) == "server.range_chosen" ? 1 : 0;
    });
  }
  ~Choices() { SetPointHook({}); }
  Choices(const Choices&) = delete;
  Choices& operator=(const Choices&) = delete;
  uint64_t count() const { return count_; }

 private:
  uint64_t count_ = 0;
};

TEST(TakeRuns, TheWorkGrowsNeitherWithHolesNorWithParts) {
  std::vector<uint64_t> sizes(20'000, 2 * kPageBytes);  // holes that are smaller than a part
  sizes.push_back(30'000 * kPageBytes);
  ExtentAllocator allocator(sizes);
  std::vector<FreeRange> runs;
  const Choices choices;
  ASSERT_TRUE(TakeRuns(PartsOfThree(10'000), &allocator, &runs));
  EXPECT_EQ(runs.size(), 2U);
  EXPECT_EQ(choices.count(), 2U);
}

// A user whose jobs left many small holes cannot make the next one's admission last for seconds.
TEST(TakeRuns, MemoryInMoreHolesThanAJobMayHaveRunsIsNoRoom) {
  for (const uint64_t hole_pages : {2U, 3U}) {  // smaller than a part, and as large
    std::vector<uint64_t> sizes(20'000, hole_pages * kPageBytes);
    ExtentAllocator allocator(sizes);
    const uint64_t before = allocator.free_bytes();
    std::vector<FreeRange> runs;
    const Choices choices;
    EXPECT_FALSE(TakeRuns(PartsOfThree(kRunsMax + 1), &allocator, &runs));
    EXPECT_LE(choices.count(), kRunsMax + 4);
    EXPECT_TRUE(runs.empty());
    EXPECT_EQ(allocator.free_bytes(), before);

    EXPECT_TRUE(TakeRuns(PartsOfThree(kRunsMax / 2 - 1), &allocator, &runs));
    EXPECT_LE(runs.size(), kRunsMax);
  }
}

TEST(TakeRuns, TakesNothingWhereARunIsMissing) {
  const uint64_t sizes[] = {4 * kPageBytes, 4 * kPageBytes, 3 * kPageBytes};
  ExtentAllocator allocator(sizes);
  std::vector<FreeRange> runs;
  for (const uint64_t parts : {2U, 3U, 1000U}) {
    ASSERT_EQ(TakeRuns(PartsOfThree(parts), &allocator, &runs), parts == 2);
    for (const FreeRange& run : runs) allocator.Release(run.offset, run.bytes);
    runs.clear();
    EXPECT_EQ(allocator.free_bytes(), 11 * kPageBytes);
    EXPECT_EQ(allocator.largest_free_bytes(), 4 * kPageBytes);
  }
  const uint64_t holes[] = {2 * kPageBytes, kPageBytes, kPageBytes, kPageBytes};
  ExtentAllocator in_holes(holes);
  EXPECT_FALSE(TakeRuns(PartsOfThree(1), &in_holes, &runs)) << "two pages lie nowhere together";
  EXPECT_TRUE(runs.empty());
  EXPECT_EQ(in_holes.free_bytes(), 5 * kPageBytes);
}

TEST(ExtentAllocatorDeathTest, ADoubleReleaseStopsTheProcess) {
  const uint64_t sizes[] = {4 * kPageBytes};
  ExtentAllocator allocator(sizes);
  ASSERT_TRUE(allocator.Take(kPageBytes));
  allocator.Release(0, kPageBytes);
  EXPECT_DEATH(allocator.Release(0, kPageBytes), "released twice");
}

TEST(ExtentAllocator, RandomTakesAndReleasesNeverOverlapAndAlwaysAddUp) {
  const uint64_t sizes[] = {64 * kPageBytes, 16 * kPageBytes, 5 * kPageBytes};
  ExtentAllocator allocator(sizes);
  SplitMix64 random(42);
  std::vector<std::pair<uint64_t, uint64_t>> taken;
  std::vector<bool> used(85, false);
  const auto mark = [&used](uint64_t offset, uint64_t bytes, bool value) {
    for (uint64_t page = offset / kPageBytes; page < (offset + bytes) / kPageBytes; ++page) {
      ASSERT_NE(used[page], value);
      used[page] = value;
    }
  };
  for (int round = 0; round < 20000; ++round) {
    if (taken.empty() || random.Below(2) == 0) {
      const uint64_t bytes = (1 + random.Below(9)) * kPageBytes;
      if (const auto offset = allocator.Take(bytes)) {
        mark(*offset, bytes, true);
        taken.emplace_back(*offset, bytes);
      } else {
        ASSERT_LT(allocator.largest_free_bytes(), bytes);
      }
    } else {
      std::swap(taken[random.Below(taken.size())], taken.back());
      mark(taken.back().first, taken.back().second, false);
      allocator.Release(taken.back().first, taken.back().second);
      taken.pop_back();
    }
    const auto free_pages = static_cast<uint64_t>(std::count(used.begin(), used.end(), false));
    ASSERT_EQ(allocator.free_bytes(), free_pages * kPageBytes);
  }
}

TEST(HostPool, GivesAllSizesOrNothing) {
  auto pool = HostPool::Reserve(SmallPool(10 * kPageBytes), kPlenty);
  ASSERT_TRUE(pool.ok());
  std::vector<Extent> extents;
  const uint64_t too_much[] = {4 * kPageBytes, 4 * kPageBytes, 4 * kPageBytes};
  EXPECT_FALSE((*pool)->Take(too_much, &extents));
  EXPECT_TRUE(extents.empty());
  EXPECT_EQ((*pool)->free_bytes(), 10 * kPageBytes);
  const uint64_t fitting[] = {4 * kPageBytes, 6 * kPageBytes};
  EXPECT_TRUE((*pool)->Take(fitting, &extents));
  EXPECT_EQ((*pool)->free_bytes(), 0u);
  (*pool)->Release(extents);
  EXPECT_EQ((*pool)->free_bytes(), 10 * kPageBytes);
}

TEST(HostPool, SpreadsOverPiecesAndKeepsItsOwnRecordsApart) {
  HostPoolOptions options = SmallPool(9 * kPageBytes);
  options.own_bytes = 100;
  options.piece_bytes_max = 4 * kPageBytes;
  auto reserved = HostPool::Reserve(options, kPlenty);
  ASSERT_TRUE(reserved.ok());
  HostPool& pool = **reserved;
  EXPECT_EQ(pool.own_records().size(), kPageBytes);
  EXPECT_EQ(pool.total_bytes(), 9 * kPageBytes);
  std::vector<Extent> extents;
  const std::vector<uint64_t> pages(9, kPageBytes);
  ASSERT_TRUE(pool.Take(pages, &extents));
  for (size_t i = 0; i < extents.size(); ++i) {
    EXPECT_EQ(pool.OffsetOf(extents[i].data), extents[i].offset);
    EXPECT_NE(extents[i].data, pool.own_records().data());
    std::memset(extents[i].data, static_cast<int>(i + 1), extents[i].bytes);
  }
  for (size_t i = 0; i < extents.size(); ++i)
    EXPECT_EQ(extents[i].data[kPageBytes - 1], static_cast<std::byte>(i + 1));
  EXPECT_EQ(pool.own_records()[0], std::byte{0});
}

TEST(HostPool, ReportsProgressUpToTheWhole) {
  HostPoolOptions options = SmallPool(200 * kMiB);
  uint64_t last = 0;
  options.progress = [&last](uint64_t done, uint64_t total) {
    EXPECT_GE(done, last);
    EXPECT_EQ(total, 200 * kMiB);
    last = done;
  };
  ASSERT_TRUE(HostPool::Reserve(options, kPlenty).ok());
  EXPECT_EQ(last, 200 * kMiB);
}

TEST(HostPool, SaysWhatTheSystemReallyGave) {
  HostPoolOptions options = SmallPool(8 * kMiB);
  options.nodes = {0};  // every machine has it
  options.clock = RealClock();
  auto pool = HostPool::Reserve(options, kPlenty);
  ASSERT_TRUE(pool.ok()) << pool.status().Format();
  const PoolFacts& facts = (*pool)->facts();
  EXPECT_GT(facts.touch_seconds, 0);
  EXPECT_EQ(facts.touch_threads, 1u) << "one slice, one thread";
  EXPECT_FALSE(facts.reserved_pages);
  EXPECT_EQ(facts.huge_page_bytes % kHugePageBytes, 0u);
  EXPECT_LE(facts.huge_page_bytes, 8 * kMiB);
  for (const NodeShare& share : facts.nodes) EXPECT_EQ(share.node, 0u);
}

TEST(HostPool, ServesWithSmallPagesWhereNoHugeOnesAreGranted) {
  HostPoolOptions options = SmallPool(8 * kMiB);
  options.huge_pages = false;
  auto pool = HostPool::Reserve(options, kPlenty);
  ASSERT_TRUE(pool.ok()) << pool.status().Format();
  EXPECT_EQ((*pool)->facts().huge_page_bytes, 0u);
  std::vector<Extent> extents;
  const uint64_t all[] = {8 * kMiB};
  ASSERT_TRUE((*pool)->Take(all, &extents));
  std::memset(extents[0].data, 1, extents[0].bytes);
}

TEST(HostPool, PagesSetAsideAreUsedOnlyWhereThePoolFitsIntoThem) {
  HostPoolOptions options = SmallPool(3 * kMiB);
  options.reserved_pages = true;
  options.own_bytes = 100;
  EXPECT_EQ(HostPool::BytesOf(options), 4 * kMiB - kPageBytes) << "the last huge page is filled";
  auto pool = HostPool::Reserve(options, kPlenty);
  ASSERT_TRUE(pool.ok()) << pool.status().Format();
  EXPECT_EQ((*pool)->total_bytes(), 4 * kMiB - kPageBytes);
  const PoolFacts& facts = (*pool)->facts();
  EXPECT_TRUE(!facts.reserved_pages || facts.huge_page_bytes == 4 * kMiB);
  std::vector<UniqueFd> pieces;
  for (const PoolPiece& piece : (*pool)->pieces()) pieces.emplace_back(dup(piece.fd));
  std::memset((*pool)->own_records().data(), 7, 8);
  const PoolGeometry geometry = (*pool)->geometry();
  pool->reset();
  auto adopted = HostPool::Adopt(std::move(pieces), geometry);
  ASSERT_TRUE(adopted.ok()) << adopted.status().Format();
  EXPECT_EQ((*adopted)->own_records()[7], std::byte{7});
}

TEST(HostPool, AWishForANodeThatIsNotThereIsNoError) {
  HostPoolOptions options = SmallPool(kMiB);
  options.nodes = {1023};
  EXPECT_TRUE(HostPool::Reserve(options, kPlenty).ok());
  EXPECT_FALSE(BindPages(nullptr, kPageBytes, options.nodes).ok());
}

TEST(HostPool, EachPieceIsBoundToItsNode) {
  HostPoolOptions options = SmallPool(8 * kPageBytes);
  options.piece_bytes_max = 4 * kPageBytes;
  options.nodes = {0};
  options.interleave = false;
  auto pool = HostPool::Reserve(options, kPlenty);
  ASSERT_TRUE(pool.ok()) << pool.status().Format();
  EXPECT_EQ((*pool)->pieces().size(), 2u);
}

TEST(PoolPages, TouchingMakesAllOfThemPresent) {
  const UniqueFd fd = CreatePoolFile(false);
  ASSERT_TRUE(fd.valid());
  ASSERT_EQ(ftruncate(fd.get(), 64 * kPageBytes), 0);
  void* const data =
      mmap(nullptr, 64 * kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  ASSERT_NE(data, MAP_FAILED);
  EXPECT_TRUE(TouchPages(static_cast<std::byte*>(data), 64 * kPageBytes).ok());
  struct stat about {};
  ASSERT_EQ(fstat(fd.get(), &about), 0);
  EXPECT_EQ(static_cast<uint64_t>(about.st_blocks) * 512, 64 * kPageBytes);
  munmap(data, 64 * kPageBytes);
  EXPECT_EQ(TouchPages(static_cast<std::byte*>(data), 64 * kPageBytes).id(),
            ErrorId::kMemoryMapFailed)
      << "nothing is mapped there now";
}

TEST(HostPool, IsRefusedWithNumbersBeforeAnyPageIsTouched) {
  HostPoolOptions options = SmallPool(uint64_t{1} << 45);  // touching 32 TiB would kill the machine
  const auto pool = HostPool::Reserve(options, {3 * kGiB, 4 * kGiB, "/sys/fs/cgroup/memory.max"});
  ASSERT_FALSE(pool.ok());
  EXPECT_EQ(pool.status().id(), ErrorId::kHostMemoryShort);
  EXPECT_NE(pool.status().Format().find("memory.max"), std::string::npos);
  EXPECT_NE(pool.status().what().find("3.00 GiB"), std::string::npos) << pool.status().what();
}

}  // namespace host_pool_test
}  // namespace tidepool::memserver
