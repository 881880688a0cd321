// TrainGrouped: the reference of a run whose ranks share experts: plain LibTorch, the ranks as
// threads of this process that hand tokens to each other, gradients summed over each parameter's
// own ranks in the order of their numbers, and the update rule's loop over whole parameters.
//
// It knows neither chunks nor data groups: who has a parameter follows from its name.
#pragma once

#include <cstdint>
#include <string>

#include "tests/trainer/parity/rig.h"

namespace tidepool::trainer {

// Whether `rank` has the parameter: neighbouring ranks share a block's experts, all have the rest.
bool HasParameter(const GptShape& shape, const std::string& name, uint32_t rank);

// Losses and weights. Requires fp32, no clipping, and one micro-batch.
RigResult TrainGrouped(const RigOptions& options);

}  // namespace tidepool::trainer
