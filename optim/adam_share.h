// AdamShare: the elements that one of many threads updates by Adam or AdamW: the body of the GPU's
// kernel, which a host runs as well, so that a test without a GPU can compare its bits with those
// of the scalar reference.
//
// The arithmetic of an element is the rule's Step (rules/adam.h), between the conversions of
// element_types.h: the same code as in the host's wide loops. Its compiler must not contract
// a*b+c, must round square roots and quotients correctly, and flushes denormals where the host form
// runs with FlushDenormals: for nvcc -fmad=false -prec-sqrt=true -prec-div=true -ftz=true.
//
// Threads take vectors of four elements in turn, neighbouring threads beside each other, so that a
// warp reads whole lines. The elements behind the last whole vector, or all if a plane does not
// begin at a multiple of 16 bytes (8 for 16-bit planes), are taken one by one.
#pragma once

#include <cstdint>

#include "optim/kernels/both_sides.h"
#include "optim/kernels/element_types.h"
#include "optim/rules/adam.h"

namespace tidepool::optim {
namespace {

constexpr uint64_t kVectorElements = 4;
constexpr unsigned kAdamThreads = 256;  // threads per block of a GPU

// Neighbours that one instruction loads and stores.
template <typename Stored>
struct __attribute__((may_alias, aligned(kVectorElements * sizeof(Stored)))) ElementVector {
  Stored at[kVectorElements];
};

// Means "no 16-bit copy".
struct NoCopy {
  using Stored = uint16_t;
};

template <typename Gradient>
struct AdamPlanes {
  float* master;
  float* momentum;
  float* variance;
  const typename Gradient::Stored* gradient;
  uint16_t* param16;  // null: none
  uint64_t count;
  int64_t from;  // in elements: distance from where states are written to where they are read
  bool vectors;  // every plane is aligned for vectors
};

template <typename Gradient_, typename Param, typename Rule_>
struct AdamShare {
  using Gradient = Gradient_;
  using Rule = Rule_;
  static constexpr bool kCopies = !__is_same(Param, NoCopy);
  using Factors = typename Rule::Factors;
  using Floats = ElementVector<float>;
  using Gradients = ElementVector<typename Gradient::Stored>;
  using Copies = ElementVector<uint16_t>;

  TP_OPTIM_STEP void UpdateOne(const Factors& f, float scale, const AdamPlanes<Gradient>& planes,
                               uint64_t i) {
    const float* const master = planes.master + planes.from;
    const float* const momentum = planes.momentum + planes.from;
    const float* const variance = planes.variance + planes.from;
    Element e{master[i], momentum[i], variance[i]};
    Rule::Step(f, Gradient::Widen(planes.gradient[i]) * scale, &e);
    planes.master[i] = e.p;
    planes.momentum[i] = e.m;
    planes.variance[i] = e.v;
    if constexpr (kCopies) planes.param16[i] = Param::Narrow(e.p);
  }

  TP_OPTIM_STEP void UpdateVector(const Factors& f, float scale, const AdamPlanes<Gradient>& planes,
                                  uint64_t vector) {
    Floats master = reinterpret_cast<const Floats*>(planes.master + planes.from)[vector];
    Floats momentum = reinterpret_cast<const Floats*>(planes.momentum + planes.from)[vector];
    Floats variance = reinterpret_cast<const Floats*>(planes.variance + planes.from)[vector];
    const Gradients gradient = reinterpret_cast<const Gradients*>(planes.gradient)[vector];
    Copies copies;

    for (uint64_t k = 0; k < kVectorElements; ++k) {
      Element e{master.at[k], momentum.at[k], variance.at[k]};
      Rule::Step(f, Gradient::Widen(gradient.at[k]) * scale, &e);
      master.at[k] = e.p;
      momentum.at[k] = e.m;
      variance.at[k] = e.v;
      if constexpr (kCopies) copies.at[k] = Param::Narrow(e.p);
    }

    reinterpret_cast<Floats*>(planes.master)[vector] = master;
    reinterpret_cast<Floats*>(planes.momentum)[vector] = momentum;
    reinterpret_cast<Floats*>(planes.variance)[vector] = variance;
    if constexpr (kCopies) reinterpret_cast<Copies*>(planes.param16)[vector] = copies;
  }

  // The work of thread `thread` of `threads`.
  TP_OPTIM_STEP void Run(const Factors& f, float scale, const AdamPlanes<Gradient>& planes,
                         uint64_t thread, uint64_t threads) {
    const uint64_t vectors = planes.vectors ? planes.count / kVectorElements : 0;
    for (uint64_t vector = thread; vector < vectors; vector += threads)
      UpdateVector(f, scale, planes, vector);
    for (uint64_t i = vectors * kVectorElements + thread; i < planes.count; i += threads)
      UpdateOne(f, scale, planes, i);
  }
};

template <typename Gradient>
AdamPlanes<Gradient> AdamPlanesOf(const UpdateSpan& span, int64_t from = 0) {
  const auto fits = [](const void* plane, uint64_t element_bytes) {
    return reinterpret_cast<uintptr_t>(plane) % (kVectorElements * element_bytes) == 0;
  };

  AdamPlanes<Gradient> planes{};
  planes.master = static_cast<float*>(span.master);
  planes.momentum = static_cast<float*>(span.momentum);
  planes.variance = static_cast<float*>(span.variance);
  planes.gradient = static_cast<const typename Gradient::Stored*>(span.gradient);
  planes.param16 = static_cast<uint16_t*>(span.param16);
  planes.count = span.count;
  planes.from = from;

  planes.vectors = from % static_cast<int64_t>(kVectorElements) == 0 &&
                   fits(span.master, sizeof(float)) && fits(span.momentum, sizeof(float)) &&
                   fits(span.variance, sizeof(float)) &&
                   fits(span.gradient, sizeof(typename Gradient::Stored)) &&
                   fits(span.param16, sizeof(uint16_t));
  return planes;
}

// The arguments of a kernel.
template <typename Share>
struct AdamArguments {
  typename Share::Factors factors;
  float scale;
  AdamPlanes<typename Share::Gradient> planes;
};

template <typename Share>
TP_BOTH_SIDES inline void Run(const AdamArguments<Share>& arguments, uint64_t thread,
                              uint64_t threads) {
  Share::Run(arguments.factors, arguments.scale, arguments.planes, thread, threads);
}

// All forms, by the names of their kernels: X(name, gradient, 16-bit copy, rule).
#define TIDEPOOL_ADAM_FORMS(X)                                          \
  X(tidepool_adamw_f32, F32Element, NoCopy, AdamRule<true>)             \
  X(tidepool_adamw_f32_bf16, F32Element, Bf16Element, AdamRule<true>)   \
  X(tidepool_adamw_f32_f16, F32Element, F16Element, AdamRule<true>)     \
  X(tidepool_adamw_bf16_bf16, Bf16Element, Bf16Element, AdamRule<true>) \
  X(tidepool_adamw_f16_f16, F16Element, F16Element, AdamRule<true>)     \
  X(tidepool_adam_f32, F32Element, NoCopy, AdamRule<false>)             \
  X(tidepool_adam_f32_bf16, F32Element, Bf16Element, AdamRule<false>)   \
  X(tidepool_adam_f32_f16, F32Element, F16Element, AdamRule<false>)     \
  X(tidepool_adam_bf16_bf16, Bf16Element, Bf16Element, AdamRule<false>) \
  X(tidepool_adam_f16_f16, F16Element, F16Element, AdamRule<false>)

// Calls `run` with the AdamShare for the span, and its planes. `from`: as AdamPlanes::from.
// Requires that WhyNotOnStream (adam_stream.h) returns null.
template <typename Rule, typename Gradient, typename Run>
void WithCopy(const UpdateSpan& span, int64_t from, const Run& run) {
  if (span.param16 == nullptr)
    return run(AdamShare<Gradient, NoCopy, Rule>(), AdamPlanesOf<Gradient>(span, from));
  if (span.param16_dtype == DType::kBF16)
    return run(AdamShare<Gradient, Bf16Element, Rule>(), AdamPlanesOf<Gradient>(span, from));
  return run(AdamShare<Gradient, F16Element, Rule>(), AdamPlanesOf<Gradient>(span, from));
}

template <typename Rule, typename Run>
void WithGradient(const UpdateSpan& span, int64_t from, const Run& run) {
  switch (span.gradient_dtype) {
    case DType::kF32: return WithCopy<Rule, F32Element>(span, from, run);
    case DType::kBF16:
      return run(AdamShare<Bf16Element, Bf16Element, Rule>(),
                 AdamPlanesOf<Bf16Element>(span, from));
    case DType::kF16:
      return run(AdamShare<F16Element, F16Element, Rule>(), AdamPlanesOf<F16Element>(span, from));
    case DType::kRaw: break;
  }
}

}  // namespace
}  // namespace tidepool::optim
