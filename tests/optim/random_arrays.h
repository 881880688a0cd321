// Arrays for the optimizer tests: random numbers of gradient-like size, and every kind of special
// value.
//
// One thread. All values follow from the seed.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/dtype.h"
#include "base/random.h"
#include "optim/kernels/convert_scalar.h"
#include "optim/kernels/isa.h"

namespace tidepool::optim {

inline constexpr uint64_t kCounts[] = {0, 1, 7, 15, 63, 64, 65, 511, 512, 513, 1023, 1025, 100003};
inline constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
inline constexpr IsaLevel kWideLevels[] = {IsaLevel::kV2, IsaLevel::kV3, IsaLevel::kV4};

// Uniform in [-size, size).
inline float RandomFloat(SplitMix64& random, float size) {
  return static_cast<float>(random.Unit() * 2 - 1) * size;
}

// One of: zeros, denormals, infinities, NaNs, the largest and smallest numbers, or any bit pattern.
inline float SpecialFloat(SplitMix64& random) {
  using Limits = std::numeric_limits<float>;
  const float specials[] = {0.0F,
                            -0.0F,
                            Limits::denorm_min(),
                            -Limits::denorm_min(),
                            1e-40F,
                            Limits::min(),
                            Limits::max(),
                            -Limits::max(),
                            Limits::infinity(),
                            -Limits::infinity(),
                            Limits::quiet_NaN(),
                            65504.0F,
                            65519.9F,
                            65520.0F,
                            6e-8F,
                            1.0F};
  const uint64_t pick = random.Below(24);
  return pick < 16 ? specials[pick] : std::bit_cast<float>(static_cast<uint32_t>(random.Next()));
}

enum class Values { kUsual, kSpecial };

inline std::vector<float> RandomFloats(uint64_t seed, uint64_t count, float size,
                                       Values values = Values::kUsual) {
  SplitMix64 random(seed);
  std::vector<float> floats(count);
  for (float& f : floats)
    f = values == Values::kSpecial && random.Below(3) == 0 ? SpecialFloat(random)
                                                           : RandomFloat(random, size);
  return floats;
}

// The bytes of `floats` as an array of `dtype`.
inline std::vector<uint8_t> Stored(const std::vector<float>& floats, DType dtype) {
  std::vector<uint8_t> bytes(floats.size() * BytesOf(dtype));
  for (uint64_t i = 0; i < floats.size(); ++i) {
    if (dtype == DType::kF32) {
      reinterpret_cast<float*>(bytes.data())[i] = floats[i];
    } else {
      NarrowElement(bytes.data(), dtype, i, floats[i]);
    }
  }
  return bytes;
}

// Equal bits, or both NaN.
inline bool Same(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}
inline bool Same(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!Same(a[i], b[i])) return false;
  }
  return true;
}

// As Same, for stored arrays.
inline bool SameStored(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b, DType dtype) {
  if (a.size() != b.size()) return false;
  for (uint64_t i = 0; i < a.size() / BytesOf(dtype); ++i) {
    if (!Same(WidenElement(a.data(), dtype, i), WidenElement(b.data(), dtype, i))) return false;
  }
  return true;
}

}  // namespace tidepool::optim
