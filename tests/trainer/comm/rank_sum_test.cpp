#include "trainer/comm/rank_sum.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace tidepool::trainer {
namespace rank_sum_test {

// Sums one element over the ranks.
uint16_t SumOf(DType dtype, std::vector<uint16_t> parts) {
  uint16_t out = 0xFFFF;
  SumInRankOrder(parts.data(), static_cast<uint32_t>(parts.size()), 1, dtype, &out);
  return out;
}

double HalfValue(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31)
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  return exponent == 0 ? sign * std::ldexp(mantissa, -24)
                       : sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(RankSum, AddsInRankOrderInFp32) {
  // 1e8 + 1 is 1e8 in fp32: the order of addition shows.
  const std::vector<float> parts{1e8F, 1.F, -1e8F};
  float out = -1;
  SumInRankOrder(parts.data(), 3, 1, DType::kF32, &out);
  EXPECT_EQ(out, 0.F);
  const std::vector<float> other{1e8F, -1e8F, 1.F};
  SumInRankOrder(other.data(), 3, 1, DType::kF32, &out);
  EXPECT_EQ(out, 1.F);
}

TEST(RankSum, SumsEveryElementOfSeveralTiles) {
  const uint64_t count = 5001;
  std::vector<float> parts(3 * count);
  for (uint64_t i = 0; i < parts.size(); ++i) parts[i] = static_cast<float>(i % 97) - 40;
  std::vector<float> expected(count);
  for (uint64_t i = 0; i < count; ++i)
    expected[i] = (parts[i] + parts[count + i]) + parts[2 * count + i];
  // Onto one of the parts.
  SumInRankOrder(parts.data(), 3, count, DType::kF32, parts.data() + count);
  EXPECT_EQ(std::vector<float>(parts.begin() + count, parts.begin() + 2 * count), expected);
}

TEST(RankSum, RoundsBf16OnceAtTheEnd) {
  // 1 + 2^-9 + 2^-9: each addition alone would round back to 1 in bf16 (8 bits); their fp32 sum 1 +
  // 2^-8 is a tie that goes to even (1).
  EXPECT_EQ(SumOf(DType::kBF16, {0x3F80, 0x3B00, 0x3B00}), 0x3F80);
  // One more 2^-9 is above the tie.
  EXPECT_EQ(SumOf(DType::kBF16, {0x3F80, 0x3B00, 0x3B00, 0x3B00}), 0x3F81);
}

TEST(RankSum, KeepsBf16NotANumber) {
  const uint16_t sum = SumOf(DType::kBF16, {0x7F80, 0xFF80});  // inf - inf
  EXPECT_TRUE((sum & 0x7F80) == 0x7F80 && (sum & 0x7F) != 0) << std::hex << sum;
}

TEST(RankSum, ReadsAndWritesEveryHalf) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    // Plus -0 changes nothing.
    const uint16_t sum = SumOf(DType::kF16, {static_cast<uint16_t>(bits), 0x8000});
    if (std::isnan(HalfValue(static_cast<uint16_t>(bits)))) {
      ASSERT_TRUE(std::isnan(HalfValue(sum))) << std::hex << bits;
    } else {
      ASSERT_EQ(sum, bits) << std::hex << bits;
    }
  }
}

TEST(RankSum, RoundsHalfToNearestEven) {
  // A grid of pairs: the fp32 sum of two halves may need rounding; compare with the nearest half
  // found by search in double.
  for (uint32_t a = 0; a < 0x7C00; a += 37) {
    for (uint32_t b = 0; b < 0x7C00; b += 1511) {
      const float exact = static_cast<float>(HalfValue(static_cast<uint16_t>(a)) +
                                             HalfValue(static_cast<uint16_t>(b)));
      const uint16_t got = SumOf(DType::kF16, {static_cast<uint16_t>(a), static_cast<uint16_t>(b)});
      if (exact >= 65520.F) {
        ASSERT_EQ(got, 0x7C00) << a << ' ' << b;
        continue;
      }
      ASSERT_LT(got, 0x7C00);
      const double error = std::abs(HalfValue(got) - exact);
      const double up = got + 1 == 0x7C00 ? 65536 : HalfValue(static_cast<uint16_t>(got + 1));
      ASSERT_LE(error, std::abs(up - exact)) << a << ' ' << b;
      if (got > 0) {
        ASSERT_LE(error, std::abs(HalfValue(static_cast<uint16_t>(got - 1)) - exact))
            << a << ' ' << b;
      }
      if (error == std::abs(up - exact)) {
        ASSERT_EQ(got % 2, 0) << a << ' ' << b;
      }
    }
  }
}

}  // namespace rank_sum_test
}  // namespace tidepool::trainer
