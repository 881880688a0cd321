// MomentWords: a moment on its way into a job (shm/messages.h, kPutMomentum): a word of 32 bits an
// element, whatever the form in which it is kept.
//
// Pure functions, any thread. A word is the bits of an fp32 number; of a moment that is kept in
// bf16, such a number with nothing in its lower half; of one that is kept in 8 bits, its code. The
// scales of these come as words of their own, one an element: that of the first element of a block
// (kScaleBlockElements) counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/formats/optimizer.h"

namespace tidepool {

// Keeps the words of a moment whose plane begins at `plane`; that of its element `first` comes
// first.
void KeepMoment(StateForm form, std::span<const uint32_t> words, uint64_t first, std::byte* plane);
// Likewise its scales, which begin at `scales`. Both count elements from the start of a block.
void KeepScales(std::span<const uint32_t> words, uint64_t first, std::byte* scales);

}  // namespace tidepool
