// EnqueueAdam: the launch of the GPU's Adam kernel, in a build that has one (adam_kernel.cu) or not (adam_kernel_absent.cpp).
//
// For adam_cuda.cpp alone, which checks what is asked and makes a Status of the answer.
#pragma once

#include "optim/update_rule.h"

namespace tidepool::optim {

// The CUDA runtime's answer; its texts live for ever.
struct KernelAnswer {
  int code = 0;  // cudaError_t; 0: enqueued. kNoKernel: this build has none.
  const char* name = "";
  const char* text = "";
};
inline constexpr int kNoKernel = -1;

KernelAnswer EnqueueAdam(const StepFactors& factors, const UpdateSpan& span, void* stream);

}  // namespace tidepool::optim
