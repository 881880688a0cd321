// A float as two 16-bit halves, without loss: `high` is the float rounded to bf16 (to nearest; an
// exact tie goes up in the order of the bits), `rest` is the rounding error, in units of the
// float's last place.
//
// Any thread; pure. Every one of the 2^32 bit patterns comes back from Join(Split(x)). `high`
// differs from rounding to nearest *even* only on exact ties. (Master weight splitting: arXiv
// 2602.23349, section 3; here with 16 bits of rest, so that nothing is lost.)
#pragma once

#include <bit>
#include <cstdint>

namespace tidepool {

// The two halves of one float.
struct SplitFloat {
  uint16_t high;
  int16_t rest;
};

// Accepts every bit pattern, including NaNs and infinities.
inline SplitFloat Split(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t high = (bits + 0x8000U) >> 16;
  return {static_cast<uint16_t>(high), static_cast<int16_t>(bits - (high << 16))};
}

// As Split, for weights: every NaN becomes the plain quiet one, because the largest NaNs would
// round to a zero.
inline SplitFloat SplitWeight(float value) {
  return value != value ? SplitFloat{0x7FC0, 0} : Split(value);
}

// SplitWeight of `count` weights.
void SplitWeights(const float* from, uint16_t* high, int16_t* rest, uint64_t count);

// The float that was passed to Split.
inline float Join(uint16_t high, int16_t rest) {
  return std::bit_cast<float>((static_cast<uint32_t>(high) << 16) +
                              static_cast<uint32_t>(static_cast<int32_t>(rest)));
}

}  // namespace tidepool
