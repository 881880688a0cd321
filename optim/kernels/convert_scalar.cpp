#include "optim/kernels/convert_scalar.h"

#include <bit>

#include "base/check.h"

namespace tidepool::optim {
namespace {

// `value` / 2^shift, rounded to nearest even. 0 < shift < 32.
uint32_t ShiftRounding(uint32_t value, int shift) {
  const uint32_t quotient = value >> shift;
  const uint32_t rest = value & ((1U << shift) - 1);
  const uint32_t half = 1U << (shift - 1);
  const bool up = rest > half || (rest == half && (quotient & 1) != 0);
  return quotient + (up ? 1 : 0);
}

}  // namespace

uint16_t NarrowToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const bool nan = (bits & 0x7FFFFFFF) > 0x7F800000;
  return static_cast<uint16_t>(nan ? (bits >> 16) | 0x40 : ShiftRounding(bits, 16));
}

uint16_t NarrowToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const int exponent = static_cast<int>((bits >> 23) & 0xFF) - 127;
  const uint32_t mantissa = bits & 0x7FFFFF;
  if (exponent == 128)
    return static_cast<uint16_t>(sign | 0x7C00 | (mantissa == 0 ? 0 : 0x200 | (mantissa >> 13)));
  if (exponent >= 16) return static_cast<uint16_t>(sign | 0x7C00);
  if (exponent >= -14) {
    // A carry out of the mantissa raises the exponent, up to inf: the fields are adjacent.
    return static_cast<uint16_t>(
        sign | ShiftRounding((static_cast<uint32_t>(exponent + 15) << 23) | mantissa, 13));
  }
  // Denormal: units of 2^-24. Values below half of the smallest one become zero.
  if (exponent < -25) return static_cast<uint16_t>(sign);
  return static_cast<uint16_t>(sign | ShiftRounding(mantissa | 0x800000, -exponent - 1));
}

float WidenBf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

float WidenF16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  uint32_t exponent = (bits >> 10) & 0x1F;
  uint32_t mantissa = bits & 0x3FF;

  if (exponent == 0x1F) {
    const uint32_t quiet = mantissa == 0 ? 0 : 0x400000;
    return std::bit_cast<float>(sign | 0x7F800000 | quiet | (mantissa << 13));
  }

  if (exponent == 0) {
    if (mantissa == 0) return std::bit_cast<float>(sign);
    exponent = 1;
    while ((mantissa & 0x400) == 0) {
      mantissa <<= 1;
      --exponent;  // wraps below zero; the sum below wraps back
    }
    mantissa &= 0x3FF;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

float WidenElement(const void* array, DType dtype, uint64_t index) {
  switch (dtype) {
    case DType::kF32: return static_cast<const float*>(array)[index];
    case DType::kBF16: return WidenBf16(static_cast<const uint16_t*>(array)[index]);
    case DType::kF16: return WidenF16(static_cast<const uint16_t*>(array)[index]);
    case DType::kRaw: break;
  }
  TP_CHECK(false, "an element type that nobody computes with");
}

void NarrowElement(void* array, DType dtype, uint64_t index, float value) {
  TP_CHECK(dtype != DType::kF32, "fp32 is not a 16-bit type");
  static_cast<uint16_t*>(array)[index] =
      dtype == DType::kBF16 ? NarrowToBf16(value) : NarrowToF16(value);
}

}  // namespace tidepool::optim
