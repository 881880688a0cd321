#include "optim/gradient_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "optim/kernels/kernels.h"
#include "tests/optim/random_arrays.h"

namespace tidepool::optim {
namespace gradient_norm_test {

TEST(ScanGradient, AgreesWithAPlainSum) {
  for (DType dtype : kDTypes) {
    const std::vector<uint8_t> gradient = Stored(RandomFloats(1, 100'003, 2.0F), dtype);
    long double plain = 0;
    for (uint64_t i = 0; i < 100'003; ++i) {
      const long double g = WidenElement(gradient.data(), dtype, i);
      plain += g * g;
    }
    const ScanResult scan = SelectKernels(BestIsa()).scan_gradient(gradient.data(), dtype, 100'003);
    EXPECT_TRUE(scan.finite);
    EXPECT_NEAR(scan.sum_squares / static_cast<double>(plain), 1.0, 1e-12);
  }
}

TEST(ScanGradient, OfNothingIsZeroAndFinite) {
  const ScanResult scan = SelectKernels(BestIsa()).scan_gradient(nullptr, DType::kBF16, 0);
  EXPECT_EQ(scan.sum_squares, 0.0);
  EXPECT_TRUE(scan.finite);
}

TEST(ScanGradient, LargestFiniteValuesAreFinite) {
  const std::vector<float> huge(5000, std::numeric_limits<float>::max());
  const ScanResult scan =
      SelectKernels(BestIsa()).scan_gradient(huge.data(), DType::kF32, huge.size());
  EXPECT_TRUE(scan.finite);
  EXPECT_TRUE(std::isfinite(scan.sum_squares));
}

TEST(ScanGradient, FindsOneBadElementAnywhere) {
  for (IsaLevel level : kWideLevels) {
    for (DType dtype : kDTypes) {
      for (float bad : {INFINITY, -INFINITY, NAN}) {
        for (uint64_t place : {0, 15, 16, 1023, 1024, 2047, 2048, 2066}) {
          std::vector<float> values(2067, 0.5F);
          values[place] = bad;
          const ScanResult scan = SelectKernels(level).scan_gradient(Stored(values, dtype).data(),
                                                                     dtype, values.size());
          ASSERT_FALSE(scan.finite) << NameOf(level) << " " << NameOf(dtype) << " at " << place;
          ASSERT_EQ(scan.sum_squares, INFINITY);
        }
      }
    }
  }
}

// Three parameters, laid into chunks of three sizes and at all alignments: the norm must not see
// it.
TEST(GradientNorm, DoesNotDependOnThePlaceOfAParameter) {
  const uint64_t counts[] = {3000, 1, 12'345};
  double first_norm = -1;
  for (uint64_t shift : {0, 1, 5, 16, 777}) {
    for (IsaLevel level : kWideLevels) {
      std::vector<double> sums;
      for (uint64_t parameter = 0; parameter < 3; ++parameter) {
        const std::vector<float> values = RandomFloats(40 + parameter, counts[parameter], 1.0F);
        std::vector<float> chunk(shift + values.size());
        std::copy(values.begin(), values.end(), chunk.begin() + static_cast<std::ptrdiff_t>(shift));
        sums.push_back(SelectKernels(level)
                           .scan_gradient(chunk.data() + shift, DType::kF32, values.size())
                           .sum_squares);
      }
      const double norm = CombineNorm(sums);
      if (first_norm < 0) first_norm = norm;
      ASSERT_EQ(std::bit_cast<uint64_t>(norm), std::bit_cast<uint64_t>(first_norm))
          << NameOf(level) << " shift " << shift;
    }
  }
  EXPECT_GT(first_norm, 0);
}

TEST(CombineNorm, IsTheRootOfTheSum) {
  const std::vector<double> sums = {9.0, 16.0};
  EXPECT_EQ(CombineNorm(sums), 5.0);
  EXPECT_EQ(CombineNorm({}), 0.0);
  const std::vector<double> overflow = {9.0, INFINITY};
  EXPECT_EQ(CombineNorm(overflow), INFINITY);
}

TEST(ClipFactor, FollowsTorch) {
  EXPECT_EQ(ClipFactor(0.5, 1.0F), 1.0F);
  EXPECT_FLOAT_EQ(ClipFactor(4.0, 1.0F), static_cast<float>(1.0 / (4.0 + 1e-6)));
  EXPECT_FLOAT_EQ(ClipFactor(1.0, 1.0F), static_cast<float>(1.0 / (1.0 + 1e-6)));
  EXPECT_EQ(ClipFactor(0.0, 1.0F), 1.0F);
}

TEST(ClipFactor, WithoutALimitIsOne) {
  EXPECT_EQ(ClipFactor(1e9, 0.0F), 1.0F);
  EXPECT_EQ(ClipFactor(1e9, -1.0F), 1.0F);
}

}  // namespace gradient_norm_test
}  // namespace tidepool::optim
