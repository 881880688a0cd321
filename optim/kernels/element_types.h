// Element types of the wide loops: branch-free conversions between a stored element and fp32, so
// that a loop over them vectorises.
//
// For the loop headers only, which are compiled once per instruction set. Everything here is
// internal to its translation unit (an unnamed namespace, built-ins instead of functions of the
// standard library): a function shared by two levels could be linked in its AVX-512 form and crash
// on an older CPU.
#pragma once

#include <cstdint>

#include "optim/kernels/both_sides.h"

namespace tidepool::optim {
namespace {

constexpr uint32_t kF32Inf = 0x7F800000;
constexpr uint32_t kF32Magnitude = 0x7FFFFFFF;

TP_BOTH_SIDES inline uint32_t BitsOf(float value) {
  return __builtin_bit_cast(uint32_t, value);
}
TP_BOTH_SIDES inline float FloatOf(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

struct F32Element {
  using Stored = float;
  TP_BOTH_SIDES static float Widen(float stored) { return stored; }
};

struct Bf16Element {
  using Stored = uint16_t;
  TP_BOTH_SIDES static float Widen(uint16_t stored) {
    return FloatOf(static_cast<uint32_t>(stored) << 16);
  }
  TP_BOTH_SIDES static uint16_t Narrow(float value) {
    const uint32_t bits = BitsOf(value);
    const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    const uint32_t quiet = (bits >> 16) | 0x40;
    return static_cast<uint16_t>((bits & kF32Magnitude) > kF32Inf ? quiet : rounded);
  }
};

struct F16Element {
  using Stored = uint16_t;
  TP_BOTH_SIDES static float Widen(uint16_t stored) {
    const uint32_t magnitude = stored & 0x7FFF;
    const uint32_t sign = static_cast<uint32_t>(stored & 0x8000) << 16;
    constexpr uint32_t kRebias = (127 - 15) << 23;
    const uint32_t normal = (magnitude << 13) + kRebias;
    const uint32_t quiet = magnitude > 0x7C00 ? 0x400000 : 0;
    const uint32_t special = (normal + kRebias) | quiet;
    // Denormals are counted in units of 2^-24; the result is a normal float, so FTZ|DAZ does not
    // touch it.
    const uint32_t denormal =
        BitsOf(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24F);
    uint32_t bits = magnitude < 0x400 ? denormal : normal;
    bits = magnitude >= 0x7C00 ? special : bits;
    return FloatOf(bits | sign);
  }
  TP_BOTH_SIDES static uint16_t Narrow(float value) {
    const uint32_t bits = BitsOf(value);
    const uint32_t magnitude = bits & kF32Magnitude;
    const uint32_t sign = (bits >> 16) & 0x8000;
    constexpr uint32_t kRebias = (127 - 15) << 23;
    const uint32_t normal = (magnitude - kRebias + 0xFFF + ((magnitude >> 13) & 1)) >> 13;
    // Below 2^-14, adding 0.5 rounds (to nearest even) at 2^-24, the unit of the denormals. A
    // denormal float counts as zero either way.
    const uint32_t denormal = BitsOf(FloatOf(magnitude) + 0.5F) - BitsOf(0.5F);
    const uint32_t quiet = 0x7E00 | ((magnitude >> 13) & 0x3FF);
    uint32_t half = magnitude < 0x38800000 ? denormal : normal;
    half = magnitude >= 0x47800000 ? 0x7C00 : half;
    half = magnitude > kF32Inf ? quiet : half;
    return static_cast<uint16_t>(half | sign);
  }
};

}  // namespace
}  // namespace tidepool::optim
