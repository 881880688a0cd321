#include "optim/adam_share.h"

// One function for each form of optim/adam_share.h, with its name there.
#define TIDEPOOL_ADAM_FUNCTION(name, ...)                                                        \
  extern "C" __global__ void __launch_bounds__(tidepool::optim::kAdamThreads) name(              \
      const tidepool::optim::AdamArguments<tidepool::optim::AdamShare<__VA_ARGS__>> arguments) { \
    const uint64_t thread =                                                                      \
        static_cast<uint64_t>(blockIdx.x) * tidepool::optim::kAdamThreads + threadIdx.x;         \
    tidepool::optim::Run(arguments, thread,                                                      \
                         static_cast<uint64_t>(gridDim.x) * tidepool::optim::kAdamThreads);      \
  }
namespace tidepool::optim {
TIDEPOOL_ADAM_FORMS(TIDEPOOL_ADAM_FUNCTION)
}  // namespace tidepool::optim
