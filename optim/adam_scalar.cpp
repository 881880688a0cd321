#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "optim/convert_scalar.h"
#include "optim/kernel_tables.h"

// The scalar reference: one element at a time, as the formulas in update_rule.h and gradient_norm.h read. The wide loops are tested
// against it bit for bit; it shares no code with them.

namespace tidepool::optim {
namespace {

void Update(const AdamFactors& f, const UpdateSpan& s) {
  for (uint64_t i = 0; i < s.count; ++i) {
    float p = s.master[i];
    float g = WidenElement(s.gradient, s.gradient_dtype, i) * f.gradient_scale;
    if (f.decoupled) {
      p = p * f.decay;
    } else {
      g = g + f.l2 * p;
    }
    const float m = f.beta1 * s.momentum[i] + f.one_minus_beta1 * g;
    const float v = f.beta2 * s.variance[i] + f.one_minus_beta2 * (g * g);
    p = p - f.step_size * m / (std::sqrt(v) * f.inverse_sqrt_bias2 + f.eps);
    s.master[i] = p;
    s.momentum[i] = m;
    s.variance[i] = v;
    if (s.param16 != nullptr) NarrowElement(s.param16, s.param16_dtype, i, p);
  }
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
    result.sum_squares += BlockSum(gradient, dtype, first, std::min(first + kScanBlockElements, count));
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

void Copy(float* to, const float* from, uint64_t count) {
  std::copy_n(from, count, to);
}

}  // namespace

const Kernels kScalarKernels = {IsaLevel::kScalarReference, Update, Scan, Accumulate, Narrow, Widen, Copy};

}  // namespace tidepool::optim
