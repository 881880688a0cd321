// LaunchAdam: one step of Adam or AdamW on a GPU, for planes that lie in its memory: one fused kernel, which reads gradient, master,
// momentum and variance once and writes the states and the 16-bit copy.
//
// Any thread whose current CUDA context is that of the stream (device/cuda_device.h sets it). Numbers: the same contract as the host form
// (optim/kernels.h, optim/float_mode.h): the bits of the scalar reference in a thread with FlushDenormals; all NaNs count as equal. One
// element moves 26 bytes with a 16-bit gradient (28 with its 16-bit copy), 28 with an fp32 one (30).
#pragma once

#include "base/status.h"
#include "optim/update_rule.h"

namespace tidepool::optim {

// Why LaunchAdam cannot do this update (rule, form of states, types, a plane that is missing); null when it can.
const char* WhyNotOnGpu(const StepFactors& factors, const UpdateSpan& span);

// Enqueues the update behind what the stream (a CUstream) holds; returns at once. Every plane is a device address, of memory that stays
// until the stream has passed this point. Requires that WhyNotOnGpu has no objection. Errors: kCudaUnavailable (built without nvcc, no
// driver, no GPU), kCudaFailed (the launch, or an earlier one, failed).
Status LaunchAdam(const StepFactors& factors, const UpdateSpan& span, void* stream);

}  // namespace tidepool::optim
