// The update loop, written once and compiled for each instruction set (see element_types.h for the rule about what it may contain).
//
// Each element costs 28 B of memory traffic with 16-bit gradients and parameters. Prefetching to a fixed distance gains 10 to 25 % on
// arrays far larger than the caches, and hides most of the saving in the crash-safe form (undo_tile.h): while one tile is computed, the
// next one arrives.
#pragma once

#include "optim/element_types.h"
#include "optim/kernels.h"

namespace tidepool::optim {
namespace {

// Stands for "no 16-bit parameters".
struct NoElement {
  using Stored = uint16_t;
};
template <typename Param>
constexpr bool kStoresParam = !__is_same(Param, NoElement);

// Elements per block: one block asks for whole cache lines of every plane.
constexpr uint64_t kBlockElements = 64;
constexpr uint64_t kPrefetchElements = 512;
constexpr uint64_t kLineBytes = 64;

// Asks for the block that lies kPrefetchElements ahead. It may lie past the plane: a prefetch never faults.
template <typename Stored>
__attribute__((always_inline)) inline void PrefetchBlock(const void* plane, uint64_t first) {
  const char* line = static_cast<const char*>(plane) + (first + kPrefetchElements) * sizeof(Stored);
#pragma GCC unroll 4
  for (uint64_t offset = 0; offset < kBlockElements * sizeof(Stored); offset += kLineBytes) __builtin_prefetch(line + offset);
}

template <typename Gradient, typename Param, bool kDecoupled>
__attribute__((always_inline)) inline void UpdateElements(const AdamFactors& f, const UpdateSpan& span, uint64_t first, uint64_t count) {
  float* const master = span.master + first;
  float* const momentum = span.momentum + first;
  float* const variance = span.variance + first;
  const auto* const gradient = static_cast<const typename Gradient::Stored*>(span.gradient) + first;
  auto* const param16 = static_cast<typename Param::Stored*>(span.param16) + (kStoresParam<Param> ? first : 0);
// The planes do not overlap.
#pragma GCC ivdep
  for (uint64_t i = 0; i < count; ++i) {
    float p = master[i];
    float g = Gradient::Widen(gradient[i]) * f.gradient_scale;
    if constexpr (kDecoupled) {
      p = p * f.decay;
    } else {
      g = g + f.l2 * p;
    }
    const float m = f.beta1 * momentum[i] + f.one_minus_beta1 * g;
    const float v = f.beta2 * variance[i] + f.one_minus_beta2 * (g * g);
    p = p - f.step_size * m / (__builtin_sqrtf(v) * f.inverse_sqrt_bias2 + f.eps);
    master[i] = p;
    momentum[i] = m;
    variance[i] = v;
    if constexpr (kStoresParam<Param>) param16[i] = Param::Narrow(p);
  }
}

template <typename Gradient, typename Param, bool kDecoupled>
void UpdateLoop(const AdamFactors& factors, const UpdateSpan& planes) {
  // Copies, so that no store to a plane can seem to change them.
  const AdamFactors f = factors;
  const UpdateSpan span = planes;
  uint64_t first = 0;
  for (; first + kBlockElements <= span.count; first += kBlockElements) {
    PrefetchBlock<float>(span.master, first);
    PrefetchBlock<float>(span.momentum, first);
    PrefetchBlock<float>(span.variance, first);
    PrefetchBlock<typename Gradient::Stored>(span.gradient, first);
    if constexpr (kStoresParam<Param>) PrefetchBlock<typename Param::Stored>(span.param16, first);
    UpdateElements<Gradient, Param, kDecoupled>(f, span, first, kBlockElements);
  }
  UpdateElements<Gradient, Param, kDecoupled>(f, span, first, span.count - first);
}

template <typename Gradient, typename Param>
void UpdateOfTypes(const AdamFactors& factors, const UpdateSpan& span) {
  return factors.decoupled ? UpdateLoop<Gradient, Param, true>(factors, span) : UpdateLoop<Gradient, Param, false>(factors, span);
}

template <typename Gradient>
void UpdateOfGradient(const AdamFactors& factors, const UpdateSpan& span) {
  if (span.param16 == nullptr) return UpdateOfTypes<Gradient, NoElement>(factors, span);
  if (span.param16_dtype == DType::kBF16) return UpdateOfTypes<Gradient, Bf16Element>(factors, span);
  return UpdateOfTypes<Gradient, F16Element>(factors, span);
}

void Update(const AdamFactors& factors, const UpdateSpan& span) {
  switch (span.gradient_dtype) {
    case DType::kF32: return UpdateOfGradient<F32Element>(factors, span);
    case DType::kBF16: return UpdateOfGradient<Bf16Element>(factors, span);
    case DType::kF16: return UpdateOfGradient<F16Element>(factors, span);
  }
}

}  // namespace
}  // namespace tidepool::optim
