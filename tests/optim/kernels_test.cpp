#include "base/formats/split_float.h"
#include "optim/kernels/kernels.h"
#include "optim/undo_tile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/units.h"
#include "optim/kernels/float_mode.h"
#include "optim/update_rule.h"
#include "tests/optim/random_arrays.h"

namespace tidepool::optim {
namespace kernels_test {

constexpr uint64_t kMargin = 64;  // elements behind the span that must stay as they are

// The kind of a job: rule, form of the states, type of its parameters, and whether gradients are
// fp32 sums.
struct Case {
  OptimizerSpec spec;
  DType param;
  bool wide_gradient;
  std::string Name() const {
    return std::string(NameOf(spec.rule)) + " " + NameOf(spec.states) + " " + NameOf(param) +
           (wide_gradient ? " fp32" : "") + (spec.momentum > 0 ? " momentum" : "");
  }
};

std::vector<OptimizerSpec> AllRuleSpecs() {
  std::vector<OptimizerSpec> specs;
  for (uint32_t rule = 0; rule < RuleNames().size(); ++rule) {
    OptimizerSpec spec;
    spec.rule = static_cast<OptimizerRule>(rule);
    specs.push_back(spec);
    if (spec.rule != OptimizerRule::kSgd) continue;
    spec.momentum = 0.9;
    spec.dampening = 0.25;
    specs.push_back(spec);
    spec.dampening = 0;
    spec.nesterov = 1;
    specs.push_back(spec);
  }
  return specs;
}

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (OptimizerSpec spec : AllRuleSpecs()) {
    cases.push_back({spec, DType::kF32, true});
    for (const bool wide : {false, true}) {
      cases.push_back({spec, DType::kF16, wide});
      for (uint32_t form = 0; form < StateFormNames().size(); ++form) {
        spec.states = static_cast<StateForm>(form);
        cases.push_back({spec, DType::kBF16, wide});
      }
      spec.states = StateForm::kF32;
    }
  }
  return cases;
}

// Planes of `count` elements and a margin, with every kind of value.
struct Planes {
  Planes(uint64_t element_count, const Case& c)
      : count(element_count),
        form(c.spec.states),
        gradient_dtype(c.wide_gradient ? DType::kF32 : c.param),
        param_dtype(c.param) {
    const uint64_t all = count + kMargin;
    const std::vector<float> values = RandomFloats(1, all, 0.1F, Values::kSpecial);
    if (c.param != DType::kF32) param16.assign(2 * all, 0xA5);
    if (IsSplit(form)) param16 = Stored(values, DType::kBF16);
    master = IsSplit(form) ? Rests(all) : Stored(values, DType::kF32);
    if (NeedsMomentum(c.spec)) momentum = Moment(2, all, 0.01F, &momentum_scales);
    if (NeedsVariance(c.spec)) variance = Moment(3, all, 0.001F, &variance_scales);
    gradient = Stored(RandomFloats(4, all, 30.0F, Values::kSpecial), gradient_dtype);
  }

  // Rests of any value, but 0 where the two halves make no number, as weights and updates leave
  // them.
  std::vector<uint8_t> Rests(uint64_t all) const {
    std::vector<uint8_t> rests = Bytes(11, all * 2);
    for (uint64_t i = 0; i < all; ++i) {
      uint16_t high = 0;
      int16_t rest = 0;
      std::memcpy(&high, &param16[2 * i], sizeof high);
      std::memcpy(&rest, &rests[2 * i], sizeof rest);
      if (!std::isfinite(Join(high, rest))) rests[2 * i] = rests[2 * i + 1] = 0;
    }
    return rests;
  }
  static std::vector<uint8_t> Bytes(uint64_t seed, uint64_t bytes) {
    SplitMix64 random(seed);
    std::vector<uint8_t> values(bytes);
    for (uint8_t& value : values) value = static_cast<uint8_t>(random.Next());
    return values;
  }
  std::vector<uint8_t> Moment(uint64_t seed, uint64_t all, float size,
                              std::vector<float>* scales) const {
    if (form == StateForm::kSplit8) {
      *scales = RandomFloats(seed + 5, all / kScaleBlockElements + 2, size, Values::kSpecial);
      for (float& scale : *scales) scale = std::fabs(scale);
      return Bytes(seed, all);
    }
    return Stored(RandomFloats(seed, all, size, Values::kSpecial),
                  form == StateForm::kSplitBf16 ? DType::kBF16 : DType::kF32);
  }

  UpdateSpan Span() {
    UpdateSpan span;
    const auto at = [](std::vector<uint8_t>& plane) {
      return plane.empty() ? nullptr : plane.data();
    };
    span.master = at(master);
    span.momentum = at(momentum);
    span.variance = at(variance);
    span.gradient = gradient.data();
    span.gradient_dtype = gradient_dtype;
    span.param16 = at(param16);
    span.param16_dtype = param_dtype;
    span.count = count;
    span.states = form;
    span.momentum_scales = momentum_scales.empty() ? nullptr : momentum_scales.data();
    span.variance_scales = variance_scales.empty() ? nullptr : variance_scales.data();
    span.random = {0x123456789abcdef0, 78};
    return span;
  }

  uint64_t count;
  StateForm form;
  DType gradient_dtype, param_dtype;
  std::vector<uint8_t> master, momentum, variance, gradient, param16;
  std::vector<float> momentum_scales, variance_scales;
};

// The states as numbers: all NaNs count as equal.
bool SamePlanes(const Planes& a, const Planes& b) {
  const DType master = a.form == StateForm::kF32 ? DType::kF32 : DType::kF16;
  const auto moment = [&a](const std::vector<uint8_t>& one, const std::vector<uint8_t>& other) {
    if (a.form == StateForm::kSplit8) return one == other;
    return SameStored(one, other, a.form == StateForm::kSplitBf16 ? DType::kBF16 : DType::kF32);
  };
  const bool same_master =
      IsSplit(a.form) ? a.master == b.master : SameStored(a.master, b.master, master);
  return same_master && moment(a.momentum, b.momentum) && moment(a.variance, b.variance) &&
         a.gradient == b.gradient && SameStored(a.param16, b.param16, a.param_dtype) &&
         Same(a.momentum_scales, b.momentum_scales) && Same(a.variance_scales, b.variance_scales);
}

StepFactors Factors(const Case& c) {
  return MakeFactors(c.spec, {3e-4, 17, 1.0F / 1024}, {1.5, 0.1});
}

void ExpectSameAsReference(IsaLevel level) {
  const Kernels& kernels = SelectKernels(level);
  for (const Case& c : AllCases()) {
    for (uint64_t count : kCounts) {
      // The long count is for the loop, not for the rule.
      if (count > 2000 && c.spec.rule != OptimizerRule::kAdamW) count = 2003;
      Planes wide(count, c);
      Planes reference = wide;
      kernels.update(Factors(c), wide.Span());
      SelectKernels(IsaLevel::kScalarReference).update(Factors(c), reference.Span());
      ASSERT_TRUE(SamePlanes(wide, reference)) << NameOf(level) << " " << c.Name() << " " << count;
    }
  }
}

class WideKernels : public ::testing::TestWithParam<IsaLevel> {
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

// Smaller moments are cut between scale blocks, others anywhere; and at any prefetch distance.
TEST_P(WideKernels, UpdateDoesNotDependOnWhereTheSpanIsCut) {
  for (const Case& c : AllCases()) {
    Planes whole(3'007, c);
    Planes pieces = whole;
    kernels_.update(Factors(c), whole.Span());
    SplitMix64 random(9);
    const bool random_bits =
        c.spec.states == StateForm::kSplit8 || c.spec.states == StateForm::kSplitBf16;
    const uint64_t unit = random_bits ? kScaleBlockElements : 1;
    for (uint64_t first = 0; first < pieces.count;) {
      const uint64_t count = std::min(pieces.count - first, random.Below(700 / unit) * unit);
      UpdateSpan slice = Slice(pieces.Span(), first, count);
      slice.prefetch = static_cast<uint32_t>(64 * random.Below(40));
      kernels_.update(Factors(c), slice);
      first += count;
    }
    ASSERT_TRUE(SamePlanes(whole, pieces)) << c.Name();
  }
}

// Planes that start anywhere, as no server lays them out.
TEST_P(WideKernels, UpdateHasTheSameBitsWhereverThePlanesBegin) {
  for (const Case& c : AllCases()) {
    Planes whole(1'003, c);
    Planes rest = whole;
    kernels_.update(Factors(c), whole.Span());
    kernels_.update(Factors(c), Slice(rest.Span(), 0, 32));
    kernels_.update(Factors(c), Slice(rest.Span(), 32, 971));
    ASSERT_TRUE(SamePlanes(whole, rest)) << c.Name();
  }
}

TEST_P(WideKernels, UpdateTouchesNothingBehindTheSpan) {
  for (const Case& c : AllCases()) {
    for (const uint64_t count : {0, 1, 31, 63, 64, 65, 1023}) {
      Planes planes(count, c);
      const Planes before = planes;
      kernels_.update(Factors(c), planes.Span());
      const auto behind = [count](const std::vector<uint8_t>& plane, uint64_t bytes) {
        return std::vector<uint8_t>(
            plane.begin() + static_cast<ptrdiff_t>(plane.empty() ? 0 : count * bytes), plane.end());
      };
      const uint64_t moment = MomentBytes(c.spec.states, 64) / 64;
      ASSERT_EQ(behind(planes.master, MasterBytes(c.spec.states, 1)),
                behind(before.master, MasterBytes(c.spec.states, 1)));
      ASSERT_EQ(behind(planes.momentum, moment), behind(before.momentum, moment)) << c.Name();
      ASSERT_EQ(behind(planes.variance, moment), behind(before.variance, moment)) << c.Name();
      ASSERT_EQ(behind(planes.param16, 2), behind(before.param16, 2)) << c.Name();
      for (uint64_t i = DivideUp(count, kScaleBlockElements); i < planes.momentum_scales.size();
           ++i) {
        ASSERT_TRUE(Same(planes.momentum_scales[i], before.momentum_scales[i])) << c.Name();
      }
    }
  }
}

// Elements [first, first + 64) of every plane that changes in place, in the order of an undo area.
std::vector<uint8_t> TileOf(const Planes& planes, uint64_t first) {
  std::vector<uint8_t> tile;
  const auto add = [&tile](const std::vector<uint8_t>& plane, uint64_t begin, uint64_t bytes) {
    if (plane.empty()) return;
    tile.insert(tile.end(), plane.begin() + static_cast<ptrdiff_t>(begin),
                plane.begin() + static_cast<ptrdiff_t>(begin + bytes));
  };
  const auto add_scales = [&tile, first](const std::vector<float>& scales) {
    if (scales.empty()) return;
    const auto* bytes = reinterpret_cast<const uint8_t*>(&scales[first / kScaleBlockElements]);
    tile.insert(tile.end(), bytes,
                bytes + kUpdateTileElements / kScaleBlockElements * sizeof(float));
  };
  const StateForm form = planes.form;
  add(planes.master, MasterBytes(form, first), MasterBytes(form, kUpdateTileElements));
  const uint64_t moment = form == StateForm::kSplit8 ? 1 : form == StateForm::kSplitBf16 ? 2 : 4;
  add(planes.momentum, first * moment, kUpdateTileElements * moment);
  add(planes.variance, first * moment, kUpdateTileElements * moment);
  if (IsSplit(form)) add(planes.param16, 2 * first, 2 * kUpdateTileElements);
  add_scales(planes.momentum_scales);
  add_scales(planes.variance_scales);
  return tile;
}

// A worker's two areas, full of other bytes, and a progress word.
struct Undo {
  static constexpr uint64_t kIdentity = 5, kVersion = 9, kBegin = 3 * kUpdateTileElements;
  std::vector<UndoArea> areas = std::vector<UndoArea>(2);
  ProgressWord progress;

  Undo() { std::memset(static_cast<void*>(areas.data()), 0x5A, 2 * sizeof(UndoArea)); }
  BlockUndo Places() {
    BlockUndo places;
    for (uint64_t i = 0; i < 2; ++i) places.areas[i] = reinterpret_cast<uint64_t*>(&areas[i]);
    places.progress = reinterpret_cast<uint64_t*>(&progress);
    places.identity = kIdentity;
    places.version = kVersion;
    places.begin = kBegin;
    places.first_word =
        ProgressWord::BitsOf({kVersion, kBegin, Progress::State::kOpen, kUpdateTileElements});
    return places;
  }
  // True when the area of the tile at `first` of the span holds `values` under the tile's name, and
  // no byte more.
  bool Holds(uint64_t first, const std::vector<uint8_t>& values) const {
    const UndoArea& area = areas[(kBegin + first) / kUpdateTileElements % 2];
    if (area.piece != kIdentity || area.version != kVersion || area.begin != kBegin + first ||
        area.count != kUpdateTileElements)
      return false;
    const auto* saved = reinterpret_cast<const uint8_t*>(area.values);
    return std::equal(values.begin(), values.end(), saved) &&
           std::all_of(saved + values.size(), saved + UndoArea::kBytesMax,
                       [](uint8_t byte) { return byte == 0x5A; });
  }
};

// The crash-safe form saves each block under its name and opens it before it changes; the update
// has the same bits.
TEST_P(WideKernels, UpdateOpensEachTileWhereAsked) {
  for (const Case& c : AllCases()) {
    for (const uint64_t count : {64, 128, 1024}) {
      Planes planes(count, c);
      Planes plain = planes;
      const Planes before = planes;
      Undo undo;
      UpdateSpan span = planes.Span();
      span.undo = undo.Places();
      kernels_.update(Factors(c), span);
      kernels_.update(Factors(c), plain.Span());
      ASSERT_TRUE(SamePlanes(planes, plain)) << c.Name() << " " << count;
      const uint64_t last = count - kUpdateTileElements;
      ASSERT_EQ(undo.progress.Load(), (Progress{Undo::kVersion, Undo::kBegin + last,
                                                Progress::State::kOpen, kUpdateTileElements}));
      ASSERT_TRUE(undo.Holds(last, TileOf(before, last))) << c.Name() << " " << count;
      if (last == 0) continue;
      ASSERT_TRUE(
          undo.Holds(last - kUpdateTileElements, TileOf(before, last - kUpdateTileElements)))
          << c.Name() << " " << count;
    }
  }
}

TEST_P(WideKernels, AccumulationHasTheBitsOfTheReference) {
  for (DType dtype : kDTypes) {
    for (uint64_t count : kCounts) {
      const std::vector<uint8_t> addend =
          Stored(RandomFloats(21, count, 10.0F, Values::kSpecial), dtype);
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
        ASSERT_EQ(std::bit_cast<uint64_t>(wide.sum_squares),
                  std::bit_cast<uint64_t>(expected.sum_squares))
            << NameOf(dtype) << " " << count;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllLevels, WideKernels, ::testing::ValuesIn(kWideLevels),
                         [](const auto& level) { return NameOf(level.param); });

}  // namespace kernels_test
}  // namespace tidepool::optim
