// UndoPart: the update loop with one of the two parts of its crash safety, to measure the cost of
// each: the copies of the old values into the undo areas, or the words (those of the area, and the
// progress of the piece). Nothing can be restored after such an update.
//
// Any thread; the functions keep no state. For a bf16 gradient and copy with fp32 states, AdamW,
// and whole blocks; the bits are those of the product's loop.
#pragma once

#include "optim/update_rule.h"

namespace tidepool::bench {

enum class UndoPart { kCopies, kWords };
using UndoPartLoop = void (*)(UndoPart part, const optim::StepFactors& factors,
                              const optim::UpdateSpan& span);

// The loop of this CPU's best level, as in SelectLoops (memory_loops.h).
UndoPartLoop SelectUndoPart();

}  // namespace tidepool::bench
