// AdamImage: the GPU code of the Adam kernels (adam_kernel.cu), in a build that has it
// (adam_image.cpp) or not (adam_image_absent.cpp).
#pragma once

#include "device/kernel.h"

namespace tidepool::optim {

const device::KernelImage& AdamImage();

}  // namespace tidepool::optim
