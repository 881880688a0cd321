#include "optim/kernels.h"

#include <gtest/gtest.h>

#include <vector>

#include "optim/float_mode.h"
#include "tests/optim/random_arrays.h"

namespace tidepool::optim {
namespace {

constexpr uint64_t kMargin = 64;  // elements behind the span that must stay as they are

// Planes of `count` elements and a margin, with every kind of value.
struct Planes {
  Planes(uint64_t element_count, DType gradient_type, DType param_type, bool has_param)
      : count(element_count),
        gradient_dtype(gradient_type),
        param_dtype(param_type),
        master(RandomFloats(1, count + kMargin, 0.1F, Values::kSpecial)),
        momentum(RandomFloats(2, count + kMargin, 0.01F, Values::kSpecial)),
        variance(RandomFloats(3, count + kMargin, 0.001F, Values::kSpecial)),
        gradient(Stored(RandomFloats(4, count + kMargin, 30.0F, Values::kSpecial), gradient_type)),
        param16(has_param ? (count + kMargin) * 2 : 0, 0xA5) {}

  UpdateSpan Span() {
    return {master.data(),   momentum.data(),
            variance.data(), gradient.data(),
            gradient_dtype,  param16.empty() ? nullptr : param16.data(),
            param_dtype,     count};
  }

  uint64_t count;
  DType gradient_dtype;
  DType param_dtype;
  std::vector<float> master, momentum, variance;
  std::vector<uint8_t> gradient, param16;
};

bool SamePlanes(const Planes& a, const Planes& b) {
  return Same(a.master, b.master) && Same(a.momentum, b.momentum) && Same(a.variance, b.variance) && a.gradient == b.gradient &&
         SameStored(a.param16, b.param16, a.param_dtype);
}

AdamFactors Factors(bool decoupled) {
  AdamSpec spec;
  spec.decoupled = decoupled;
  return MakeAdamFactors(spec, {3e-4, 17, 1.0F / 1024}, {1.5, 0.1});
}

struct Case {
  DType gradient;
  DType param;
  bool has_param;
  bool decoupled;
};

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (DType gradient : kDTypes) {
    for (bool decoupled : {false, true}) {
      cases.push_back({gradient, DType::kBF16, false, decoupled});
      cases.push_back({gradient, DType::kBF16, true, decoupled});
      cases.push_back({gradient, DType::kF16, true, decoupled});
    }
  }
  return cases;
}

void ExpectSameAsReference(IsaLevel level) {
  const Kernels& kernels = SelectKernels(level);
  for (const Case& c : AllCases()) {
    for (uint64_t count : kCounts) {
      Planes wide(count, c.gradient, c.param, c.has_param);
      Planes reference = wide;
      kernels.update(Factors(c.decoupled), wide.Span());
      SelectKernels(IsaLevel::kScalarReference).update(Factors(c.decoupled), reference.Span());
      ASSERT_TRUE(SamePlanes(wide, reference)) << NameOf(level) << " " << NameOf(c.gradient) << " " << NameOf(c.param) << " " << count;
    }
  }
}

class WideKernels : public testing::TestWithParam<IsaLevel> {
 protected:
  const Kernels& kernels_ = SelectKernels(GetParam());
  const Kernels& reference_ = SelectKernels(IsaLevel::kScalarReference);
};

TEST_P(WideKernels, UpdateHasTheBitsOfTheReference) {
  ExpectSameAsReference(GetParam());
}

TEST_P(WideKernels, UpdateHasTheBitsOfTheReferenceWithDenormalsFlushed) {
  FlushDenormals flush;
  ExpectSameAsReference(GetParam());
}

TEST_P(WideKernels, UpdateDoesNotDependOnWhereTheSpanIsCut) {
  Planes whole(10'007, DType::kBF16, DType::kF16, true);
  Planes pieces = whole;
  kernels_.update(Factors(true), whole.Span());
  SplitMix64 random(9);
  for (uint64_t first = 0; first < pieces.count;) {
    const uint64_t count = std::min(pieces.count - first, random.Below(700));
    kernels_.update(Factors(true), Slice(pieces.Span(), first, count));
    first += count;
  }
  EXPECT_TRUE(SamePlanes(whole, pieces));
}

TEST_P(WideKernels, UpdateTouchesNothingBehindTheSpan) {
  for (uint64_t count : kCounts) {
    Planes planes(count, DType::kF16, DType::kBF16, true);
    const Planes before = planes;
    kernels_.update(Factors(true), planes.Span());
    for (uint64_t i = count; i < count + kMargin; ++i) {
      ASSERT_TRUE(Same(planes.master[i], before.master[i]) && Same(planes.momentum[i], before.momentum[i]));
      ASSERT_TRUE(Same(planes.variance[i], before.variance[i]));
      ASSERT_EQ(planes.param16[2 * i], 0xA5);
    }
  }
}

TEST_P(WideKernels, AccumulationHasTheBitsOfTheReference) {
  for (DType dtype : kDTypes) {
    for (uint64_t count : kCounts) {
      const std::vector<uint8_t> addend = Stored(RandomFloats(21, count, 10.0F, Values::kSpecial), dtype);
      std::vector<float> sum = RandomFloats(22, count + kMargin, 10.0F, Values::kSpecial);
      std::vector<float> expected = sum;
      kernels_.accumulate_gradient(sum.data(), addend.data(), dtype, count);
      reference_.accumulate_gradient(expected.data(), addend.data(), dtype, count);
      ASSERT_TRUE(Same(sum, expected)) << NameOf(dtype) << " " << count;
    }
  }
}

TEST_P(WideKernels, ScanHasTheBitsOfTheReference) {
  for (DType dtype : kDTypes) {
    for (uint64_t count : kCounts) {
      for (Values values : {Values::kUsual, Values::kSpecial}) {
        const std::vector<uint8_t> gradient = Stored(RandomFloats(31, count, 3.0F, values), dtype);
        const ScanResult wide = kernels_.scan_gradient(gradient.data(), dtype, count);
        const ScanResult expected = reference_.scan_gradient(gradient.data(), dtype, count);
        ASSERT_EQ(wide.finite, expected.finite) << NameOf(dtype) << " " << count;
        ASSERT_EQ(std::bit_cast<uint64_t>(wide.sum_squares), std::bit_cast<uint64_t>(expected.sum_squares))
            << NameOf(dtype) << " " << count;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllLevels, WideKernels, testing::ValuesIn(kWideLevels), [](const auto& level) { return NameOf(level.param); });

}  // namespace
}  // namespace tidepool::optim
