// The stored forms of one state, in plain code: the bit-exact reference for the wide loops
// (optim/state_forms.h).
//
// Any thread; pure. bf16 moments are rounded stochastically: up with a probability equal to the
// truncated fraction. 8-bit moments are codes relative to the largest magnitude s of their block of
// 32 (FlashOptim, arXiv 2602.23349, section 4; block-wise: Dettmers et al. 2022):
//   momentum   x = m / s, z = 2x / (1 + |x|), code 127 z;   back: z / (2 - |z|) * s
//   variance   code 255 sqrt(v) / s, at least 1 unless v is 0;   back: (code * s / 255)^2
// Code 0 is 0, whatever the scale. Codes are rounded stochastically too, because a moment that
// changes by less than one code per step would otherwise never move.
#pragma once

#include <cstdint>

namespace tidepool::optim {

// 16 random bits of an element, used to round both its moments: rounded with the same bits, their
// errors partly cancel in m / sqrt(v). Two neighbours, at an even index and the next, share one
// hash.
uint32_t Random16Of(uint64_t key, uint64_t index);
uint16_t NarrowToBf16Randomly(float value, uint32_t random16);

// `inverse` is InverseScale(s).
float InverseScale(float scale);
int8_t MomentumCode(float momentum, float inverse, uint32_t random16);
float MomentumOf(int8_t code, float scale);
uint8_t RootCode(float root, float inverse, uint32_t random16);
float RootOf(uint8_t code, float scale);

}  // namespace tidepool::optim
