// ProfileStep: what one forward and backward of a GPT will take of a device, and in which order it
// will use its parameters, found before any weight exists (the pre-runtime profiler of Elixir v2,
// section 3.1).
//
// The thread that trains later; no other thread may use LibTorch meanwhile. The model's own code
// runs on LibTorch's meta device, whose tensors have sizes and no memory. What is counted is what
// LibTorch's allocator would be asked for, tensor by tensor, so a profile costs a call for each
// operator, however large the model is. Attention is that of the fused kernels, which keep no
// scores, as on the host and on CUDA.
// Not counted: scratch memory inside an operator (attention, matrix products), and what an
// allocator loses to rounding and gaps. The formula of the allowed memory takes a quarter more for
// both (trainer/plan/search.h). The trace's notes are those of GptParameters(shape, lora).
#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "trainer/model/gpt_shape.h"
#include "trainer/model/lora.h"
#include "trainer/profile/step_recorder.h"

namespace tidepool::trainer {

// What is profiled.
struct ProfileTask {
  GptShape shape;
  LoraShape lora;
  DType dtype = DType::kF32;
  uint64_t sequences = 1, tokens = 1;  // of one rank's micro-batch
  bool checkpointing = false;
  // Where each stage of a step ends that goes through some (trainer/pipeline/staged_step.h); empty:
  // one micro-batch goes through the whole model.
  std::vector<uint32_t> stage_ends = {};
  // By stage, whether the rank that is profiled computes it; empty: all of them.
  std::vector<bool> own_stages = {};
  uint32_t micro_batches = 1;
  ExpertPlace experts = {};  // of the rank that is profiled
};

// Errors: kUsageError (the shape), kLibraryFailed (LibTorch's words).
Result<StepProfile> ProfileStep(const ProfileTask& task);

}  // namespace tidepool::trainer
