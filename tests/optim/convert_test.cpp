#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "optim/kernels/convert_scalar.h"
#include "optim/kernels/float_mode.h"
#include "optim/kernels/kernels.h"
#include "tests/optim/random_arrays.h"

namespace tidepool::optim {
namespace convert_test {

constexpr uint32_t kPatterns = 65536;

struct Format {
  DType dtype;
  int mantissa_bits;
  int exponent_bias;
};
constexpr Format kFormats[] = {{DType::kBF16, 7, 127}, {DType::kF16, 10, 15}};

// The value of a 16-bit pattern by the definition of IEEE 754, in double.
double SlowWiden(uint16_t bits, const Format& format) {
  const int fraction = bits & ((1 << format.mantissa_bits) - 1);
  const int exponent = (bits & 0x7FFF) >> format.mantissa_bits;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 2 * format.exponent_bias + 1) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0)
    return sign * std::ldexp(fraction, 1 - format.exponent_bias - format.mantissa_bits);
  return sign * std::ldexp((1 << format.mantissa_bits) + fraction,
                           exponent - format.exponent_bias - format.mantissa_bits);
}

// The pattern nearest to `value` (ties to even), found in double with the C library's rounding. Not
// for NaN.
uint16_t SlowNarrow(float value, const Format& format) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  const uint16_t inf =
      static_cast<uint16_t>((2 * format.exponent_bias + 1) << format.mantissa_bits);
  const int lowest = 1 - format.exponent_bias;
  const int exponent = magnitude == 0 ? lowest : std::max(lowest, std::ilogb(magnitude));
  if (exponent > format.exponent_bias) return sign | inf;
  const double units = std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent));
  // A denormal has fewer units than a whole mantissa and exponent field 0; the sum carries into the
  // exponent where rounding does.
  return static_cast<uint16_t>(
      sign | (static_cast<int>(units) + ((exponent - lowest) << format.mantissa_bits)));
}

std::vector<float> WidenAll(const Kernels& kernels, DType dtype) {
  std::vector<uint16_t> patterns(kPatterns);
  for (uint32_t i = 0; i < kPatterns; ++i) patterns[i] = static_cast<uint16_t>(i);
  std::vector<float> wide(kPatterns);
  kernels.widen(wide.data(), patterns.data(), dtype, kPatterns);
  return wide;
}

std::vector<uint16_t> Narrow(const Kernels& kernels, DType dtype,
                             const std::vector<float>& values) {
  std::vector<uint16_t> narrow(values.size());
  kernels.narrow(narrow.data(), dtype, values.data(), values.size());
  return narrow;
}

class Conversion : public ::testing::TestWithParam<IsaLevel> {
 protected:
  const Kernels& kernels_ = SelectKernels(GetParam());
};

TEST_P(Conversion, WidensEveryPatternExactly) {
  for (const Format& format : kFormats) {
    const std::vector<float> wide = WidenAll(kernels_, format.dtype);
    for (uint32_t i = 0; i < kPatterns; ++i) {
      ASSERT_TRUE(Same(wide[i], static_cast<float>(SlowWiden(static_cast<uint16_t>(i), format))))
          << NameOf(format.dtype) << " " << i;
    }
  }
}

TEST_P(Conversion, EveryPatternComesBack) {
  for (const Format& format : kFormats) {
    const std::vector<uint16_t> back =
        Narrow(kernels_, format.dtype, WidenAll(kernels_, format.dtype));
    for (uint32_t i = 0; i < kPatterns; ++i) {
      const bool nan = std::isnan(SlowWiden(static_cast<uint16_t>(i), format));
      const uint32_t quiet_bit = 1U << (format.mantissa_bits - 1);
      ASSERT_EQ(back[i], nan ? (i | quiet_bit) : i) << NameOf(format.dtype);
    }
  }
}

TEST_P(Conversion, RoundsToNearestEvenAroundEveryMidpoint) {
  for (const Format& format : kFormats) {
    std::vector<float> values;
    for (uint32_t i = 0; i + 1 < kPatterns; ++i) {
      const double low = SlowWiden(static_cast<uint16_t>(i), format);
      const double high = SlowWiden(static_cast<uint16_t>(i + 1), format);
      if (!std::isfinite(low) || !std::isfinite(high)) continue;
      const float middle = static_cast<float>((low + high) / 2);
      for (float value :
           {middle, std::nextafter(middle, -INFINITY), std::nextafter(middle, INFINITY)})
        values.push_back(value);
    }
    const std::vector<uint16_t> narrow = Narrow(kernels_, format.dtype, values);
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(narrow[i], SlowNarrow(values[i], format))
          << NameOf(format.dtype) << " " << values[i];
  }
}

TEST_P(Conversion, RoundsRandomAndSpecialValues) {
  SplitMix64 random(11);
  std::vector<float> values(200'003);
  for (float& value : values)
    value = random.Below(2) == 0 ? SpecialFloat(random) : RandomFloat(random, 1e5F);
  for (const Format& format : kFormats) {
    const std::vector<uint16_t> narrow = Narrow(kernels_, format.dtype, values);
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i])) {
        ASSERT_TRUE(std::isnan(SlowWiden(narrow[i], format)));
      } else {
        ASSERT_EQ(narrow[i], SlowNarrow(values[i], format))
            << NameOf(format.dtype) << " " << values[i];
      }
    }
  }
}

TEST_P(Conversion, DoesNotDependOnTheFloatMode) {
  const std::vector<float> values = RandomFloats(5, 10'007, 1e-5F, Values::kSpecial);
  for (const Format& format : kFormats) {
    const std::vector<float> wide = WidenAll(kernels_, format.dtype);
    const std::vector<uint16_t> narrow = Narrow(kernels_, format.dtype, values);
    FlushDenormals flush;
    EXPECT_TRUE(Same(WidenAll(kernels_, format.dtype), wide));
    EXPECT_EQ(Narrow(kernels_, format.dtype, values), narrow);
  }
}

TEST_P(Conversion, LeavesNeighboursAlone) {
  const std::vector<float> values = RandomFloats(6, 1025, 1.0F);
  for (uint64_t count : kCounts) {
    if (count > values.size() - 1) continue;
    std::vector<uint16_t> narrow(values.size(), 0xABCD);
    std::vector<float> wide(values.size(), 42.0F);
    kernels_.narrow(narrow.data(), DType::kF16, values.data(), count);
    kernels_.widen(wide.data(), narrow.data(), DType::kF16, count);
    EXPECT_EQ(narrow[count], 0xABCD);
    EXPECT_EQ(wide[count], 42.0F);
    std::fill(wide.begin(), wide.end(), 42.0F);
    kernels_.copy(wide.data(), values.data(), count * sizeof(float));
    EXPECT_TRUE(std::equal(wide.begin(), wide.begin() + static_cast<std::ptrdiff_t>(count),
                           values.begin()));
    EXPECT_EQ(wide[count], 42.0F);
  }
}

TEST(Conversion, Fp16OverflowsFrom65520) {
  EXPECT_EQ(NarrowToF16(65504.0F), 0x7BFF);
  EXPECT_EQ(NarrowToF16(65519.996F), 0x7BFF);
  EXPECT_EQ(NarrowToF16(65520.0F), 0x7C00);
  EXPECT_EQ(NarrowToF16(-1e30F), 0xFC00);
  EXPECT_EQ(NarrowToF16(0x1p-24F), 0x0001);
  EXPECT_EQ(NarrowToF16(0x1p-25F), 0x0000);
  EXPECT_EQ(NarrowToF16(0x1.000002p-25F), 0x0001);
}

TEST(Conversion, LargestFloatRoundsToInfInBf16) {
  EXPECT_EQ(NarrowToBf16(std::numeric_limits<float>::max()), 0x7F80);
}

INSTANTIATE_TEST_SUITE_P(AllLevels, Conversion,
                         ::testing::Values(IsaLevel::kScalarReference, IsaLevel::kV2, IsaLevel::kV3,
                                           IsaLevel::kV4),
                         [](const auto& level) { return NameOf(level.param); });

}  // namespace convert_test
}  // namespace tidepool::optim
