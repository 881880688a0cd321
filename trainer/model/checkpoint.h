// Checkpoint: activation checkpointing for a piece of a model: keep its input only, and compute the
// piece again in backward.
//
// Any thread that may run the model. The piece must give the same bits when it is run again (no
// dropout, no outside state that changes between forward and backward); then all gradients are
// bit-identical to those without checkpointing.
// The second forward runs inside backward ("re-entrant"): operators of the piece are called a
// second time there, followed at once by the piece's own backward.
#pragma once

#include <functional>
#include <memory>

#include <ATen/ATen.h>

#include "trainer/model/activation_store.h"

namespace tidepool::trainer {

using CheckpointedPiece = std::function<at::Tensor(const at::Tensor&)>;

// piece(input). The piece is kept until backward has run; what it captures must live as long. When
// gradients are off, or `input` needs no gradient (backward would then never reach the piece), it
// is simply run. `store`: where the input waits meanwhile; null: where it is.
at::Tensor Checkpoint(const CheckpointedPiece& piece, const at::Tensor& input,
                      const std::shared_ptr<ActivationStore>& store = nullptr);

}  // namespace tidepool::trainer
