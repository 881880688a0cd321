// DamageKept: changes words of kept memory as the input says, and makes some of the checks over
// them fit again.
//
// Pure function of the input and the image. Words are chosen by what they mean (a step record, a
// progress word ...), because a byte anywhere in a pool of weights seldom means anything.
#pragma once

#include <cstddef>
#include <span>

#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/kept_images.h"

namespace tidepool::memserver {

// `index` and `pool` hold copies of the image's. Returns how many words were changed.
uint32_t DamageKept(fuzz::FuzzInput* input, const KeptImage& image, std::span<std::byte> index,
                    std::span<std::byte> pool);

}  // namespace tidepool::memserver
