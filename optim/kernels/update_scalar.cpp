#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/formats/split_float.h"
#include "optim/kernels/convert_scalar.h"
#include "optim/kernels/kernel_tables.h"
#include "optim/rules.h"
#include "optim/kernels/state_scalar.h"

// The scalar reference: one element at a time, as written in the formulas of optim/rules/,
// state_scalar.h and gradient_norm.h. The wide loops are tested against it bit for bit; it shares
// no code with them except the factors.

namespace tidepool::optim {
namespace {

float LoadMaster(const UpdateSpan& s, uint64_t i) {
  if (s.states == StateForm::kF32) return static_cast<const float*>(s.master)[i];
  return Join(static_cast<const uint16_t*>(s.param16)[i], static_cast<const int16_t*>(s.master)[i]);
}

void StoreMaster(const UpdateSpan& s, uint64_t i, float p) {
  if (s.states == StateForm::kF32) {
    static_cast<float*>(s.master)[i] = p;
    if (s.param16 != nullptr) NarrowElement(s.param16, s.param16_dtype, i, p);
    return;
  }
  const SplitFloat halves = SplitWeight(p);
  static_cast<uint16_t*>(s.param16)[i] = halves.high;
  static_cast<int16_t*>(s.master)[i] = halves.rest;
}

// Element `i` of a moment's plane, for elementwise forms.
float LoadMoment(const UpdateSpan& s, const void* plane, uint64_t i) {
  if (plane == nullptr) return 0;
  return s.states == StateForm::kSplitBf16 ? WidenBf16(static_cast<const uint16_t*>(plane)[i])
                                           : static_cast<const float*>(plane)[i];
}

void StoreMoment(const UpdateSpan& s, void* plane, uint64_t i, float moment, uint32_t random16) {
  if (plane == nullptr) return;
  if (s.states == StateForm::kSplitBf16) {
    static_cast<uint16_t*>(plane)[i] = NarrowToBf16Randomly(moment, random16);
  } else {
    static_cast<float*>(plane)[i] = moment;
  }
}

template <typename Rule>
void UpdateElements(const StepFactors& factors, const UpdateSpan& s) {
  const auto f = FactorsOf<Rule>(factors);
  for (uint64_t i = 0; i < s.count; ++i) {
    Element e{LoadMaster(s, i), LoadMoment(s, s.momentum, i), LoadMoment(s, s.variance, i)};
    Rule::Reference(f, WidenElement(s.gradient, s.gradient_dtype, i) * factors.gradient_scale, &e);
    StoreMaster(s, i, e.p);
    const uint32_t random = Random16Of(s.random.key, s.random.index + i);
    StoreMoment(s, s.momentum, i, e.m, random);
    StoreMoment(s, s.variance, i, e.v, random);
  }
}

// The largest magnitude; a NaN if there is one, because its bits compare as the largest.
float LargestOf(std::span<const float> values) {
  uint32_t largest = 0;
  for (const float value : values)
    largest = std::max(largest, std::bit_cast<uint32_t>(std::fabs(value)));
  return std::bit_cast<float>(largest);
}

// Updates one scale block of 8-bit states, or the part of it in the span.
template <typename Rule>
void UpdateScaleBlock(const StepFactors& factors, const UpdateSpan& s, uint64_t first) {
  const auto f = FactorsOf<Rule>(factors);
  const uint64_t count = std::min(kScaleBlockElements, s.count - first);

  auto* const momentum = static_cast<int8_t*>(s.momentum);
  auto* const variance = static_cast<uint8_t*>(s.variance);
  float* const m_scale =
      Rule::kMomentum ? s.momentum_scales + first / kScaleBlockElements : nullptr;
  float* const root_scale =
      Rule::kVariance ? s.variance_scales + first / kScaleBlockElements : nullptr;
  std::vector<float> m(count), roots(count);

  for (uint64_t k = 0; k < count; ++k) {
    Element e{LoadMaster(s, first + k), 0, 0};
    if (Rule::kMomentum) e.m = MomentumOf(momentum[first + k], *m_scale);
    const float root = Rule::kVariance ? RootOf(variance[first + k], *root_scale) : 0;
    e.v = root * root;
    Rule::Reference(
        f, WidenElement(s.gradient, s.gradient_dtype, first + k) * factors.gradient_scale, &e);
    StoreMaster(s, first + k, e.p);
    m[k] = e.m;
    roots[k] = std::sqrt(e.v);
  }

  if (Rule::kMomentum) *m_scale = LargestOf(m);
  if (Rule::kVariance) *root_scale = LargestOf(roots);

  for (uint64_t k = 0; k < count; ++k) {
    const uint32_t random = Random16Of(s.random.key, s.random.index + first + k);
    if (Rule::kMomentum) momentum[first + k] = MomentumCode(m[k], InverseScale(*m_scale), random);
    if (Rule::kVariance)
      variance[first + k] = RootCode(roots[k], InverseScale(*root_scale), random);
  }
}

template <typename Rule>
void UpdateByRule(const StepFactors& factors, const UpdateSpan& s) {
  if (s.states != StateForm::kSplit8) return UpdateElements<Rule>(factors, s);
  for (uint64_t first = 0; first < s.count; first += kScaleBlockElements)
    UpdateScaleBlock<Rule>(factors, s, first);
}

template <typename... Rules>
void UpdateByList(RuleList<Rules...> /*list*/, const StepFactors& factors, const UpdateSpan& s) {
  using Function = void (*)(const StepFactors&, const UpdateSpan&);
  constexpr std::array<Function, sizeof...(Rules)> kFunctions{UpdateByRule<Rules>...};
  kFunctions[factors.rule](factors, s);
}

void Update(const StepFactors& factors, const UpdateSpan& s) {
  TP_CHECK(s.undo.progress == nullptr, "the reference opens no tiles");
  UpdateByList(AllRules(), factors, s);
}

double BlockSum(const void* gradient, DType dtype, uint64_t first, uint64_t end) {
  std::array<double, kScanLanes> lanes{};
  for (uint64_t i = first; i < end; ++i) {
    const double g = static_cast<double>(WidenElement(gradient, dtype, i));
    lanes[(i - first) % kScanLanes] += g * g;
  }
  for (uint64_t distance = kScanLanes / 2; distance > 0; distance /= 2) {
    for (uint64_t lane = 0; lane < distance; ++lane) lanes[lane] += lanes[lane + distance];
  }
  return lanes[0];
}

ScanResult Scan(const void* gradient, DType dtype, uint64_t count) {
  ScanResult result{0, true};
  for (uint64_t i = 0; i < count; ++i) {
    if (!std::isfinite(WidenElement(gradient, dtype, i))) result.finite = false;
  }
  for (uint64_t first = 0; first < count; first += kScanBlockElements) {
    result.sum_squares +=
        BlockSum(gradient, dtype, first, std::min(first + kScanBlockElements, count));
  }
  if (!result.finite) result.sum_squares = std::numeric_limits<double>::infinity();
  return result;
}

void Accumulate(float* sum, const void* addend, DType dtype, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) sum[i] += WidenElement(addend, dtype, i);
}

void Narrow(void* to, DType to_dtype, const float* from, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) NarrowElement(to, to_dtype, i, from[i]);
}

void Widen(float* to, const void* from, DType from_dtype, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) to[i] = WidenElement(from, from_dtype, i);
}

void Copy(void* to, const void* from, uint64_t bytes) {
  std::memcpy(to, from, bytes);
}

}  // namespace

const Kernels kScalarKernels = {
    IsaLevel::kScalarReference, Update, Scan, Accumulate, Narrow, Widen, Copy};

}  // namespace tidepool::optim
