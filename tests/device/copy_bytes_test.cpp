#include "device/host/copy_bytes.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "device/host/copy_team.h"
#include "device/host/copy_tuning.h"
#include "tests/fakes/real_clock.h"

namespace tidepool::device {
namespace copy_bytes_test {

std::vector<std::byte> Random(size_t bytes) {
  SplitMix64 random(5);
  std::vector<std::byte> values(bytes);
  for (std::byte& byte : values) byte = static_cast<std::byte>(random.Next());
  return values;
}

// Copies with every kind of start and end around lines, pages and blocks; the bytes beside the
// target must not change.
TEST(CopyKernels, EachCopiesEveryAlignmentAndTailExactly) {
  constexpr size_t kGuard = 128;
  const std::vector<std::byte> from = Random(300'000 + 256);
  const std::vector<CopyKernel> kernels = CopyKernels();
  ASSERT_EQ(kernels.front(), CopyKernel::kMemcpy);
  for (const CopyKernel kernel : kernels) {
    SplitMix64 random(6);
    for (int round = 0; round < 200; ++round) {
      const uint64_t bytes = round < 120 ? random.Below(300) : random.Below(300'000);
      const uint64_t src = random.Below(256), dst = kGuard + random.Below(128);
      std::vector<std::byte> to(dst + bytes + kGuard, std::byte{0xA5});
      CopyWith(kernel, to.data() + dst, from.data() + src, bytes);
      ASSERT_EQ(std::memcmp(to.data() + dst, from.data() + src, bytes), 0)
          << NameOf(kernel) << ": " << bytes << " bytes from " << src << " to " << dst;
      for (uint64_t i = 0; i < dst; ++i) ASSERT_EQ(to[i], std::byte{0xA5}) << NameOf(kernel);
      for (uint64_t i = dst + bytes; i < to.size(); ++i)
        ASSERT_EQ(to[i], std::byte{0xA5}) << NameOf(kernel);
    }
    CopyWith(kernel, nullptr, nullptr, 0);
  }
}

TEST(CopyBytes, AnyChoiceForLargeCopiesGivesTheSameBytes) {
  const CopyKernel before = LargeCopyKernel();
  const std::vector<std::byte> from = Random(kStreamingCopyMin + 77);
  for (const CopyKernel kernel : CopyKernels()) {
    SetLargeCopyKernel(kernel);
    EXPECT_EQ(LargeCopyKernel(), kernel);
    std::vector<std::byte> to(from.size());
    CopyBytes(to.data(), from.data(), to.size(), to.size());
    EXPECT_EQ(to, from) << NameOf(kernel);
  }
  SetLargeCopyKernel(before);
  CopyBytes(nullptr, nullptr, 0, kStreamingCopyMin);
}

TEST(CopyTuning, ChoosesTheFastestAndKeepsToItsTime) {
  const CopyKernel before = LargeCopyKernel();
  std::vector<std::byte> scratch(kTuneBytesMin);
  CopyTeam team(RealClock(), 1, 20'000);
  const CopyTuning tuning = TuneCopies(scratch, &team, 20 * kNsPerMs, *RealClock());
  ASSERT_EQ(tuning.rates.size(), CopyKernels().size());
  EXPECT_EQ(LargeCopyKernel(), tuning.chosen);
  double chosen = 0, best = 0;
  for (const CopyRate& rate : tuning.rates) {
    EXPECT_GT(rate.bytes_per_second, 0) << NameOf(rate.kernel);
    best = std::max(best, rate.bytes_per_second);
    if (rate.kernel == tuning.chosen) chosen = rate.bytes_per_second;
  }
  EXPECT_GE(chosen * 1.06, best) << NameOf(tuning.chosen);
  EXPECT_EQ(tuning.threads > 1, team.used())
      << "helpers are used exactly when they were measured to be worth it";
  SetLargeCopyKernel(before);
}

TEST(CopyTuning, MeasuresNothingInTooLittleMemory) {
  std::vector<std::byte> scratch(kMiB);
  const CopyTuning tuning = TuneCopies(scratch, nullptr, kNsPerSecond, *RealClock());
  EXPECT_TRUE(tuning.rates.empty());
  EXPECT_EQ(tuning.chosen, LargeCopyKernel());
}

}  // namespace copy_bytes_test
}  // namespace tidepool::device
