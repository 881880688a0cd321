// ProfileStep: the device memory that one forward and backward of a GPT will take, and the order in
// which it will use its parameters, found before any weight exists (the pre-runtime profiler of
// Elixir v2, section 3.1).
//
// The later training thread; no other thread may use LibTorch meanwhile. The model's own code runs
// on LibTorch's meta device, whose tensors have sizes but no memory. It counts the requests to
// LibTorch's allocator, tensor by tensor, so a profile costs one call per operator, however large
// the model is. Attention is that of the fused kernels, which keep no scores, as on the host and on
// CUDA. Not counted: scratch memory inside an operator (attention, matrix products), and an
// allocator's losses by rounding and gaps. The formula of the allowed memory adds a quarter for
// both (trainer/plan/search.h). The trace's notes are those of GptParameters(shape, lora).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "trainer/model/gpt_shape.h"
#include "trainer/model/lora.h"
#include "trainer/profile/step_recorder.h"

namespace tidepool::trainer {

// The step to profile.
struct ProfileTask {
  GptShape shape;
  LoraShape lora;
  DType dtype = DType::kF32;
  uint64_t sequences = 1, tokens = 1;  // of one rank's micro-batch
  bool checkpointing = false;
  uint32_t vocab_tiles = 1;  // of the loss (trainer/model/loss/tiled_loss.h)
  // Where each stage of a staged step ends (trainer/pipeline/staged_step.h); empty: one micro-batch
  // goes through the whole model.
  std::vector<uint32_t> stage_ends = {};
  // By stage, whether the profiled rank computes it; empty: all.
  std::vector<bool> own_stages = {};
  uint32_t micro_batches = 1;
  // The profiled rank, if ranks share experts as the shape says; nullopt: it has all experts.
  std::optional<uint32_t> expert_rank = std::nullopt;
};

// Errors: kUsageError (the shape), kLibraryFailed (with LibTorch's message).
Result<StepProfile> ProfileStep(const ProfileTask& task);

}  // namespace tidepool::trainer
