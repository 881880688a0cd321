#include "optim/adam_image.h"

// The file that nvcc made from adam_kernel.cu, unchanged. A fatbin is read in words of eight bytes.
__asm__(
    ".section .rodata\n"
    ".balign 64\n"
    "tidepool_adam_fatbin:\n"
    ".incbin \"" TIDEPOOL_ADAM_FATBIN
    "\"\n"
    ".balign 8\n"
    ".previous\n");
extern "C" __attribute__((visibility("hidden"))) const unsigned char tidepool_adam_fatbin[];

namespace tidepool::optim {

const device::KernelImage& AdamImage() {
  static constexpr device::KernelImage kImage = {.data = tidepool_adam_fatbin};
  return kImage;
}

}  // namespace tidepool::optim
