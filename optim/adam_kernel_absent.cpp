#include "optim/adam_kernel.h"

// For builds without the CUDA compiler.

namespace tidepool::optim {

KernelAnswer EnqueueAdam(const StepFactors& /*factors*/, const UpdateSpan& /*span*/, void* /*stream*/) {
  return {kNoKernel, "no kernel", "this build had no CUDA compiler (nvcc)"};
}

}  // namespace tidepool::optim
