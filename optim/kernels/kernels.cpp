#include "optim/kernels/kernels.h"

#include <algorithm>

#include "optim/kernels/kernel_tables.h"

namespace tidepool::optim {

const Kernels& SelectKernels(IsaLevel level) {
  switch (std::min(level, BestIsa())) {
    case IsaLevel::kV4: return kV4Kernels;
    case IsaLevel::kV3: return kV3Kernels;
    case IsaLevel::kV2: return kV2Kernels;
    case IsaLevel::kScalarReference: break;
  }
  return kScalarKernels;
}

}  // namespace tidepool::optim
