// Checkpoint: activation checkpointing for a piece of a model: keeps only its input, and recomputes
// the piece in backward.
//
// Any thread that may run the model. The piece must give the same bits when it runs again (no
// dropout, no outside state that changes between forward and backward); all gradients are then
// bit-identical to those without checkpointing. The second forward runs inside backward
// ("re-entrant"): it calls the piece's operators again, followed at once by the piece's own
// backward.
#pragma once

#include <functional>
#include <memory>

#include <ATen/ATen.h>

#include "trainer/model/activation_store.h"

namespace tidepool::trainer {

using CheckpointedPiece = std::function<at::Tensor(const at::Tensor&)>;

// Returns piece(input). The piece is kept until backward has run; its captures must live as long.
// If gradients are off, or `input` needs no gradient (backward would then never reach the piece),
// just runs it. `store`: holds the input meanwhile; null: it stays in place.
at::Tensor Checkpoint(const CheckpointedPiece& piece, const at::Tensor& input,
                      const std::shared_ptr<ActivationStore>& store = nullptr);

}  // namespace tidepool::trainer
