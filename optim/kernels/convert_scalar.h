// Conversions between fp32 and the 16-bit types, one element at a time, in integer arithmetic: the
// reference for the wide loops.
//
// Any thread; pure functions of bits, so the float mode of the thread does not matter. Rounding is
// to nearest even.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace tidepool::optim {

// fp32 to bf16: the upper half, rounded. A NaN keeps its upper payload bits and becomes quiet.
uint16_t NarrowToBf16(float value);
// fp32 to IEEE binary16: gradual underflow, values from 65520 on become inf. A NaN keeps its upper
// payload bits and becomes quiet.
uint16_t NarrowToF16(float value);
// bf16 to fp32, bit for bit (a signalling NaN stays one).
float WidenBf16(uint16_t bits);
// IEEE binary16 to fp32, exact. A NaN keeps its payload and becomes quiet.
float WidenF16(uint16_t bits);

// Element `index` of an array of `dtype` as fp32.
float WidenElement(const void* array, DType dtype, uint64_t index);
// Rounds `value` into element `index` of an array of `dtype` (kBF16 or kF16).
void NarrowElement(void* array, DType dtype, uint64_t index, float value);

}  // namespace tidepool::optim
