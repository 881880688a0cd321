// The factors of an update, computed from a job, a step and a parameter group, as the loops use
// them.
//
// Any thread; pure functions. The rules themselves are in optim/rules/.
#pragma once

#include <cstdint>

#include "base/formats/optimizer.h"
#include "optim/update_span.h"

namespace tidepool::optim {

// Requires a checked spec, finite scalars and optimizer_step >= 1.
StepFactors MakeFactors(const OptimizerSpec& spec, const StepScalars& step,
                        const GroupScalars& group);

// `parameter_seed` is RoundingSeedOf(spec, name of the parameter).
uint64_t RandomKey(uint64_t parameter_seed, uint64_t version);

// Elements [first, first + count) of `span`, which must lie inside it. kSplitBf16, kSplit8: `first`
// must start a scale block.
UpdateSpan Slice(const UpdateSpan& span, uint64_t first, uint64_t count);

}  // namespace tidepool::optim
