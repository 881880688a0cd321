// MomentWords: the format of moments in puts (shm/messages.h, kPutMomentum): a 32-bit word per
// element, independent of the form in which the job stores them.
//
// Pure functions, any thread. A word holds the bits of an fp32 number; for a moment in bf16 its
// lower half is zero; for an 8-bit moment it is the code. The scales of 8-bit moments are separate
// puts, also a word per element; the word of the first element of each block (kScaleBlockElements)
// counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/formats/optimizer.h"

namespace tidepool {

// Stores words of a moment into the plane that begins at `plane`. The first word belongs to element
// `first`.
void KeepMoment(StateForm form, std::span<const uint32_t> words, uint64_t first, std::byte* plane);
// The same for its scales, which begin at `scales`. Elements are counted from the start of a block.
void KeepScales(std::span<const uint32_t> words, uint64_t first, std::byte* scales);

}  // namespace tidepool
