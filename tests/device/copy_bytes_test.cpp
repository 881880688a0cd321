#include "device/copy_bytes.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/random.h"

namespace tidepool::device {
namespace {

// Copies with every kind of start and end around lines, pages and blocks; the bytes beside the target must not change.
TEST(CopyBytes, EveryAlignmentAndTailIsCopiedExactly) {
  constexpr size_t kGuard = 128;
  SplitMix64 random(5);
  std::vector<std::byte> from(300'000 + 256);
  for (std::byte& byte : from) byte = static_cast<std::byte>(random.Next());
  for (const uint64_t copy_bytes : {uint64_t{1}, kStreamingCopyMin}) {
    for (int round = 0; round < 400; ++round) {
      const uint64_t bytes = round < 200 ? random.Below(300) : random.Below(300'000);
      const uint64_t src = random.Below(256), dst = kGuard + random.Below(128);
      std::vector<std::byte> to(dst + bytes + kGuard, std::byte{0xA5});
      CopyBytes(to.data() + dst, from.data() + src, bytes, copy_bytes);
      ASSERT_EQ(std::memcmp(to.data() + dst, from.data() + src, bytes), 0) << bytes << " bytes from " << src << " to " << dst;
      for (uint64_t i = 0; i < dst; ++i) ASSERT_EQ(to[i], std::byte{0xA5});
      for (uint64_t i = dst + bytes; i < to.size(); ++i) ASSERT_EQ(to[i], std::byte{0xA5});
    }
  }
}

TEST(CopyBytes, NothingIsAllowed) {
  CopyBytes(nullptr, nullptr, 0, kStreamingCopyMin);
}

}  // namespace
}  // namespace tidepool::device
