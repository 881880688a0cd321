// The forms of the states in the wide loops: how a block of 64 elements is read, updated and stored
// (see element_types.h for the rule about what this may contain).
//
// Elementwise forms are one loop: read, step, store. If every plane has 16 bits per element, the
// loop goes over words of two neighbours, each processed in its own half, so that no vector lane
// ever moves to another. The 8-bit form needs the largest moment of a block before it can store
// any, so it steps 32 elements first and encodes them then. base/formats/split_float.h and
// optim/kernels/state_scalar.h give the encodings in plain code.
#pragma once

#include <immintrin.h>

#include "optim/kernels/element_types.h"
#include "optim/rules.h"

namespace tidepool::optim {
namespace {

constexpr uint64_t kBlockElements = 64;

// The planes of a block, at its first element.
struct Block {
  void* master;
  void* momentum;
  void* variance;
  const void* gradient;
  void* param16;
  float* momentum_scales;
  float* variance_scales;
  uint32_t random_low, random_high;  // the halves of the key
  uint32_t random_pair;              // of the first two elements
  // True if param16 is only written, and is aligned to a cache line: it bypasses the caches.
  bool streams = false;
};

// Stores a block's 16-bit copies to a plane whose lines have not been read: a plain store would
// read each line before it is overwritten. Other threads see the stores in order only after a fence
// (UpdateLoop::Run).
inline void StreamBlock(void* to, const uint16_t* from) {
#if defined(__AVX512F__)
  using Vector = __m512i;
  const auto stream = [](void* place, Vector value) {
    _mm512_stream_si512(static_cast<Vector*>(place), value);
  };

#elif defined(__AVX__)
  using Vector = __m256i;
  const auto stream = [](void* place, Vector value) {
    _mm256_stream_si256(static_cast<Vector*>(place), value);
  };

#else
  using Vector = __m128i;
  const auto stream = [](void* place, Vector value) {
    _mm_stream_si128(static_cast<Vector*>(place), value);
  };
#endif

  constexpr uint64_t kVectors = kBlockElements * sizeof(uint16_t) / sizeof(Vector);
#pragma GCC unroll 8
  for (uint64_t i = 0; i < kVectors; ++i) {
    Vector value;
    __builtin_memcpy(&value, from + i * (sizeof value / sizeof(uint16_t)), sizeof value);
    stream(static_cast<Vector*>(to) + i, value);
  }
}

// 16 random bits for each of two neighbours, the low ones for the even one. (Mixing steps of C.
// Wellons' "lowbias32".)
inline uint32_t RandomPair(uint32_t pair, uint32_t low, uint32_t high) {
  uint32_t x = pair + low;
  x = (x ^ (x >> 16)) * 0x7feb352dU;
  x = ((x ^ (x >> 15)) + high) * 0x846ca68bU;
  return x ^ (x >> 16);
}

inline float JoinHalves(uint16_t high, int16_t rest) {
  return FloatOf((static_cast<uint32_t>(high) << 16) +
                 static_cast<uint32_t>(static_cast<int32_t>(rest)));
}

inline uint32_t PlainNan(float value) {
  const uint32_t bits = BitsOf(value);
  return (bits & kF32Magnitude) > kF32Inf ? 0x7FC00000U : bits;
}

// Means "no 16-bit parameters".
struct NoElement {
  using Stored = uint16_t;
};

// The master of fp32 states.
template <typename Param>
struct WholeMaster {
  static constexpr uint64_t kBytes = 4;
  static constexpr uint64_t kParamBytes = __is_same(Param, NoElement) ? 0 : 2;
  static constexpr bool kIsSplit = false;
  static constexpr bool kCopies = kParamBytes > 0;  // param16 is not read
  explicit WholeMaster(const Block& b)
      : master(static_cast<float*>(b.master)), param(static_cast<uint16_t*>(b.param16)) {}
  float Load(uint64_t i) const { return master[i]; }
  void Store(uint64_t i, float p) const {
    master[i] = p;
    if constexpr (kParamBytes > 0) param[i] = Param::Narrow(p);
  }
  float* const master;
  uint16_t* const param;
};

// The split master: the parameter and a rest.
struct SplitMaster {
  static constexpr uint64_t kBytes = 2;
  static constexpr uint64_t kParamBytes = 2;
  static constexpr bool kIsSplit = true;
  static constexpr bool kCopies = false;
  explicit SplitMaster(const Block& b)
      : rest(static_cast<int16_t*>(b.master)), high(static_cast<uint16_t*>(b.param16)) {}
  float Load(uint64_t i) const { return JoinHalves(high[i], rest[i]); }
  void Store(uint64_t i, float p) const {
    const uint32_t bits = PlainNan(p);
    const uint32_t top = (bits + 0x8000U) >> 16;
    high[i] = static_cast<uint16_t>(top);
    rest[i] = static_cast<int16_t>(bits - (top << 16));
  }
  int16_t* const rest;
  uint16_t* const high;
};

struct F32Moments {
  static constexpr uint64_t kBytes = 4;
  explicit F32Moments(const Block& b)
      : momentum(static_cast<float*>(b.momentum)), variance(static_cast<float*>(b.variance)) {}
  float LoadM(uint64_t i) const { return momentum[i]; }
  float LoadV(uint64_t i) const { return variance[i]; }
  void StoreM(uint64_t i, float m) const { momentum[i] = m; }
  void StoreV(uint64_t i, float v) const { variance[i] = v; }
  float* const momentum;
  float* const variance;
};

template <typename MasterForm>
struct ElementForm {
  using Master = MasterForm;
  static constexpr uint64_t kMomentBytes = F32Moments::kBytes;
  static constexpr bool kScaled = false;

  template <typename Gradient, typename Rule>
  __attribute__((always_inline)) static inline void Update(const typename Rule::Factors& f,
                                                           float scale, const Block& block) {
    Block b = block;

    alignas(64) uint16_t copies[kBlockElements];
    if constexpr (MasterForm::kCopies) b.param16 = copies;
    const MasterForm master(b);
    const F32Moments moments(b);
    const auto* const gradient = static_cast<const typename Gradient::Stored*>(b.gradient);
// The planes do not overlap.
#pragma GCC ivdep
    for (uint64_t i = 0; i < kBlockElements; ++i) {
      Element e;
      e.p = master.Load(i);
      if constexpr (Rule::kMomentum) e.m = moments.LoadM(i);
      if constexpr (Rule::kVariance) e.v = moments.LoadV(i);
      Rule::Step(f, Gradient::Widen(gradient[i]) * scale, &e);
      master.Store(i, e.p);
      if constexpr (Rule::kMomentum) moments.StoreM(i, e.m);
      if constexpr (Rule::kVariance) moments.StoreV(i, e.v);
    }

    if constexpr (MasterForm::kCopies)
      block.streams ? StreamBlock(block.param16, copies)
                    : void(__builtin_memcpy(block.param16, copies, sizeof copies));
  }
};

// Two neighbours of a plane of 16-bit numbers; the even one is in the low half.
using Pair = uint32_t __attribute__((may_alias));
constexpr uint32_t kTopHalf = 0xFFFF0000;

inline float EvenOf(uint32_t pair) {
  return FloatOf(pair << 16);
}
inline float OddOf(uint32_t pair) {
  return FloatOf(pair & kTopHalf);
}
// Truncates both to 16 bits after adding to the truncated part. A NaN stays one: none in these
// loops has more than 16 bits.
inline uint32_t CutPair(float even, uint32_t even_add, float odd, uint32_t odd_add) {
  return ((BitsOf(even) + even_add) >> 16) | ((BitsOf(odd) + odd_add) & kTopHalf);
}

template <typename Gradient>
struct GradientPairs;
template <>
struct GradientPairs<Bf16Element> {
  static float Even(const void* gradient, uint64_t j) {
    return EvenOf(static_cast<const Pair*>(gradient)[j]);
  }
  static float Odd(const void* gradient, uint64_t j) {
    return OddOf(static_cast<const Pair*>(gradient)[j]);
  }
};
template <>
struct GradientPairs<F32Element> {
  static float Even(const void* gradient, uint64_t j) {
    return FloatOf(PlainNan(static_cast<const float*>(gradient)[2 * j]));
  }
  static float Odd(const void* gradient, uint64_t j) {
    return FloatOf(PlainNan(static_cast<const float*>(gradient)[2 * j + 1]));
  }
};

// Split master and bf16 moments, which are rounded up with a probability equal to the truncated
// fraction.
struct PairForm {
  using Master = SplitMaster;
  static constexpr uint64_t kMomentBytes = 2;
  static constexpr bool kScaled = false;

  template <typename Gradient, typename Rule>
  __attribute__((always_inline)) static inline void Update(const typename Rule::Factors& f,
                                                           float scale, const Block& b) {
    auto* const high = static_cast<Pair*>(b.param16);
    auto* const rest = static_cast<Pair*>(b.master);
    auto* const momentum = static_cast<Pair*>(b.momentum);
    auto* const variance = static_cast<Pair*>(b.variance);

#pragma GCC ivdep
    for (uint64_t j = 0; j < kBlockElements / 2; ++j) {
      Element even, odd;
      const auto rests = static_cast<int32_t>(rest[j]);
      even.p = FloatOf((high[j] << 16) +
                       static_cast<uint32_t>(static_cast<int32_t>(rest[j] << 16) >> 16));
      odd.p = FloatOf((high[j] & kTopHalf) + static_cast<uint32_t>(rests >> 16));
      if constexpr (Rule::kMomentum) even.m = EvenOf(momentum[j]), odd.m = OddOf(momentum[j]);
      if constexpr (Rule::kVariance) even.v = EvenOf(variance[j]), odd.v = OddOf(variance[j]);
      Rule::Step(f, GradientPairs<Gradient>::Even(b.gradient, j) * scale, &even);
      Rule::Step(f, GradientPairs<Gradient>::Odd(b.gradient, j) * scale, &odd);
      // The rest is the low half of the master, read as a signed number.
      high[j] = CutPair(even.p, 0x8000, odd.p, 0x8000);
      rest[j] = (BitsOf(even.p) & ~kTopHalf) | (BitsOf(odd.p) << 16);

      const uint32_t random =
          RandomPair(b.random_pair + static_cast<uint32_t>(j), b.random_low, b.random_high);
      if constexpr (Rule::kMomentum)
        momentum[j] = CutPair(even.m, random & ~kTopHalf, odd.m, random >> 16);
      if constexpr (Rule::kVariance)
        variance[j] = CutPair(even.v, random & ~kTopHalf, odd.v, random >> 16);
    }
  }
};

// 1 / scale; 0 if that would not be a normal number (all codes are 0 then) or the scale is not
// finite.
inline float InverseOf(float scale) {
  return scale >= 0x1p-126F ? 1.0F / scale : 0.0F;
}

// `value` in [-limit, limit]; NaN becomes `limit`.
inline float Limited(float value, float limit) {
  const float below = value < limit ? value : limit;
  return below > -limit ? below : -limit;
}

// Code of a momentum whose block has the largest magnitude 1 / inverse: FlashOptim's compander
// (arXiv 2602.23349, section 4), 7 bits and sign.
inline int8_t EncodeMomentum(float m, float inverse, uint32_t random) {
  const float x = m * inverse;
  const float z = 2.0F * x / (1.0F + FloatOf(BitsOf(x) & kF32Magnitude));
  const float steps = Limited(z * 127.0F, 127.0F) + 128.0F;
  const int32_t code =
      static_cast<int32_t>(steps + static_cast<float>(static_cast<int32_t>(random)) * 0x1p-16F);
  return static_cast<int8_t>(code - 128);
}
inline float DecodeMomentum(int8_t code, float scale) {
  const float z = static_cast<float>(static_cast<int32_t>(code)) * (1.0F / 127.0F);
  const float magnitude = FloatOf(BitsOf(z) & kF32Magnitude);
  const float m = z / (2.0F - magnitude) * scale;
  return code == 0 ? 0.0F : m;
}

// Code of the root of a variance. Only zero itself gets code 0: rounding must not make a
// denominator zero.
inline uint8_t EncodeRoot(float root, float inverse, uint32_t random) {
  const float steps = Limited(root * inverse * 255.0F, 255.0F);
  const int32_t code =
      static_cast<int32_t>(steps + static_cast<float>(static_cast<int32_t>(random)) * 0x1p-16F);
  const int32_t least = root > 0.0F ? 1 : 0;
  return static_cast<uint8_t>(code > least ? code : least);
}
inline float DecodeRoot(uint8_t code, float scale) {
  const float root = static_cast<float>(static_cast<int32_t>(code)) * (scale * (1.0F / 255.0F));
  return code == 0 ? 0.0F : root;
}

struct Split8Form {
  using Master = SplitMaster;
  static constexpr uint64_t kMomentBytes = 1;
  static constexpr bool kScaled = true;

  // The new values of a scale block's elements, before they are encoded.
  struct Stepped {
    alignas(64) float m[kScaleBlockElements];
    alignas(64) float root[kScaleBlockElements];
    // Largest magnitudes, as bits: their maximum does not depend on the order.
    uint32_t m_max = 0, root_max = 0;
  };

  template <typename Gradient, typename Rule>
  __attribute__((always_inline)) static inline void Step(const typename Rule::Factors& f,
                                                         float scale, const Block& b,
                                                         uint64_t first, Stepped* out) {
    const SplitMaster master(b);
    const auto* const gradient = static_cast<const typename Gradient::Stored*>(b.gradient);
    const auto* const momentum = static_cast<const int8_t*>(b.momentum);
    const auto* const variance = static_cast<const uint8_t*>(b.variance);
    const float m_scale = Rule::kMomentum ? b.momentum_scales[first / kScaleBlockElements] : 0.0F;
    const float root_scale =
        Rule::kVariance ? b.variance_scales[first / kScaleBlockElements] : 0.0F;

    uint32_t m_max = 0, root_max = 0;
#pragma GCC ivdep
    for (uint64_t k = 0; k < kScaleBlockElements; ++k) {
      const uint64_t i = first + k;
      Element e;
      e.p = master.Load(i);
      if constexpr (Rule::kMomentum) e.m = DecodeMomentum(momentum[i], m_scale);
      if constexpr (Rule::kVariance) {
        const float root = DecodeRoot(variance[i], root_scale);
        e.v = root * root;
      }

      Rule::Step(f, Gradient::Widen(gradient[i]) * scale, &e);
      master.Store(i, e.p);

      if constexpr (Rule::kMomentum) {
        const uint32_t magnitude = BitsOf(e.m) & kF32Magnitude;
        m_max = magnitude > m_max ? magnitude : m_max;
        out->m[k] = e.m;
      }
      if constexpr (Rule::kVariance) {
        const float root = __builtin_sqrtf(e.v);
        const uint32_t magnitude = BitsOf(root) & kF32Magnitude;
        root_max = magnitude > root_max ? magnitude : root_max;
        out->root[k] = root;
      }
    }

    out->m_max = m_max;
    out->root_max = root_max;
  }

  template <typename Rule>
  __attribute__((always_inline)) static inline void Store(const Block& b, uint64_t first,
                                                          const Stepped& stepped) {
    auto* const momentum = static_cast<int8_t*>(b.momentum);
    auto* const variance = static_cast<uint8_t*>(b.variance);

    if constexpr (Rule::kMomentum)
      b.momentum_scales[first / kScaleBlockElements] = FloatOf(stepped.m_max);
    if constexpr (Rule::kVariance)
      b.variance_scales[first / kScaleBlockElements] = FloatOf(stepped.root_max);
    const float m_inverse = InverseOf(FloatOf(stepped.m_max));
    const float root_inverse = InverseOf(FloatOf(stepped.root_max));
    const uint32_t first_pair = b.random_pair + static_cast<uint32_t>(first / 2);

#pragma GCC ivdep
    for (uint32_t k = 0; k < kScaleBlockElements; ++k) {
      const uint32_t random =
          (RandomPair(first_pair + k / 2, b.random_low, b.random_high) >> (k % 2 * 16)) & 0xFFFF;
      if constexpr (Rule::kMomentum)
        momentum[first + k] = EncodeMomentum(stepped.m[k], m_inverse, random);
      if constexpr (Rule::kVariance)
        variance[first + k] = EncodeRoot(stepped.root[k], root_inverse, random);
    }
  }

  template <typename Gradient, typename Rule>
  __attribute__((always_inline)) static inline void Update(const typename Rule::Factors& f,
                                                           float scale, const Block& b) {
    for (uint64_t first = 0; first < kBlockElements; first += kScaleBlockElements) {
      Stepped stepped;
      Step<Gradient, Rule>(f, scale, b, first, &stepped);
      Store<Rule>(b, first, stepped);
    }
  }
};

}  // namespace
}  // namespace tidepool::optim
