#include "trainer/comm/rank_sum.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace tidepool::trainer {
namespace {

// One tile's running sums stay in the first-level cache while the parts stream by.
constexpr uint64_t kTile = 2048;

struct F32 {
  using Stored = float;
  static float Load(float value) { return value; }
  static float Store(float value) { return value; }
};

struct BF16 {
  using Stored = uint16_t;
  static float Load(uint16_t bits) {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
  // Round to nearest even; a NaN stays a NaN (its mantissa must not round up to infinity's).
  static uint16_t Store(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    return static_cast<uint16_t>(value != value ? (bits >> 16) | 0x40 : rounded);
  }
};

struct F16 {
  using Stored = uint16_t;
  // Converts subnormals as integers, in units of 2^-24, so that a thread that flushes fp32
  // subnormals reads them right too.
  static float Load(uint16_t half) {
    const uint32_t magnitude = half & 0x7FFF;
    // Infinity and NaN keep the highest exponent.
    const uint32_t rebias = magnitude >= 0x7C00 ? 0x70000000 : 0x38000000;
    const float normal = std::bit_cast<float>((magnitude << 13) + rebias);
    const float subnormal = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24F;
    const uint32_t bits = std::bit_cast<uint32_t>(magnitude < 0x400 ? subnormal : normal);
    return std::bit_cast<float>(bits | static_cast<uint32_t>(half & 0x8000) << 16);
  }
  // Round to nearest even, without branches. The three cases below overlap; the last that applies
  // wins.
  static uint16_t Store(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7FFFFFFF;
    uint32_t half = (magnitude + 0xFFF + ((magnitude >> 13) & 1) - 0x38000000) >> 13;
    // Below 2^-14 a half is a multiple of 2^-24, the last bit of 0.5: that addition rounds.
    const uint32_t subnormal =
        std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3F000000;
    half = magnitude < 0x38800000 ? subnormal : half;
    half = magnitude >= 0x477FF000 ? 0x7C00 : half;  // 65520 and more become infinity
    half = magnitude > 0x7F800000 ? 0x7E00 : half;   // NaN
    return static_cast<uint16_t>(sign | half);
  }
};

// Compiled twice and selected at program start; the bits are the same. (Sanitizers run before such
// a selection can be made.)
#if defined(__x86_64__) && !defined(TIDEPOOL_SANITIZED)
#define TIDEPOOL_WIDE __attribute__((target_clones("avx2", "default")))
#else
#define TIDEPOOL_WIDE
#endif

template <typename T>
inline __attribute__((always_inline)) void Sum(const void* parts, uint32_t world, uint64_t count,
                                               void* out) {
  using Stored = typename T::Stored;
  const auto* in = static_cast<const Stored*>(parts);
  auto* result = static_cast<Stored*>(out);
  float sums[kTile];

  for (uint64_t begin = 0; begin < count; begin += kTile) {
    const uint64_t n = std::min(kTile, count - begin);
    for (uint64_t i = 0; i < n; ++i) sums[i] = T::Load(in[begin + i]);
    for (uint32_t rank = 1; rank < world; ++rank) {
      const Stored* part = in + rank * count + begin;
      for (uint64_t i = 0; i < n; ++i) sums[i] += T::Load(part[i]);
    }
    for (uint64_t i = 0; i < n; ++i) result[begin + i] = T::Store(sums[i]);
  }
}

TIDEPOOL_WIDE void SumF32(const void* parts, uint32_t world, uint64_t count, void* out) {
  Sum<F32>(parts, world, count, out);
}
TIDEPOOL_WIDE void SumBF16(const void* parts, uint32_t world, uint64_t count, void* out) {
  Sum<BF16>(parts, world, count, out);
}
TIDEPOOL_WIDE void SumF16(const void* parts, uint32_t world, uint64_t count, void* out) {
  Sum<F16>(parts, world, count, out);
}

}  // namespace

void SumInRankOrder(const void* parts, uint32_t world, uint64_t count, DType dtype, void* out) {
  switch (dtype) {
    case DType::kF32: return SumF32(parts, world, count, out);
    case DType::kBF16: return SumBF16(parts, world, count, out);
    case DType::kF16: return SumF16(parts, world, count, out);
    case DType::kRaw: break;
  }
  TP_CHECK(false, "raw bytes are gathered, never summed");
}

}  // namespace tidepool::trainer
