// Memory for transfers: whole, zero, and laid so that the system can give pages of 2 MiB.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/units.h"
#include "nvme/page_memory.h"

namespace tidepool::nvme {
namespace page_memory_test {

bool IsZero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(),
                     [](std::byte byte) { return byte == std::byte{0}; });
}

TEST(PageMemory, LargeMemoryIsMadeOfWholeHugePages) {
  auto memory = PageMemory::Map(5 * kMiB + 1);
  ASSERT_TRUE(memory.ok()) << memory.status().Format();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->bytes().data()) % kHugePageBytes, 0u);
  EXPECT_EQ(memory->bytes().size(), 6 * kMiB);
  EXPECT_TRUE(IsZero(memory->bytes()));
  std::fill(memory->bytes().begin(), memory->bytes().end(), std::byte{7});
  const PageMemory moved = std::move(*memory);
  EXPECT_EQ(moved.bytes().back(), std::byte{7});
}

TEST(PageMemory, SmallOrUntouchedMemoryIsNoLargerThanItsPages) {
  EXPECT_EQ(PageMemory::Map(5000)->bytes().size(), 2 * kPageBytes);
  auto untouched = PageMemory::Map(4 * kMiB + 1, false);
  ASSERT_TRUE(untouched.ok());
  EXPECT_EQ(untouched->bytes().size(), 4 * kMiB + kPageBytes);
  EXPECT_TRUE(IsZero(untouched->bytes()));
}

TEST(PageMemory, WhatTheSystemDoesNotHaveIsAnError) {
  for (const bool touch : {false, true}) {
    const auto memory = PageMemory::Map(uint64_t{1} << 60, touch);
    ASSERT_FALSE(memory.ok());
    EXPECT_EQ(memory.status().id(), ErrorId::kMemoryMapFailed);
  }
}

}  // namespace page_memory_test
}  // namespace tidepool::nvme
