// The batches of a rig's runs.
//
// Any thread; pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tests/trainer/parity/rig.h"
#include "trainer/data/batch_cursor.h"

namespace tidepool::trainer {

// The sequences of a rank, and one batch's as int64 [B][T].
BatchCursor CursorOf(const RigOptions& options, uint32_t rank, uint32_t world);
at::Tensor TokensOf(const std::vector<int64_t>& tokens, const Batch& batch);

}  // namespace tidepool::trainer
