#include "optim/adam_image.h"

// For builds without the CUDA compiler: an empty module. The driver decides whether that is enough:
// a GPU's driver looks for the functions in it, the tests' fake driver has them itself.

namespace tidepool::optim {

const device::KernelImage& AdamImage() {
  static constexpr device::KernelImage kImage = {
      .data = ".version 7.0\n.target sm_80\n.address_size 64\n",
      .without = "this program was built without nvcc, the CUDA compiler"};
  return kImage;
}

}  // namespace tidepool::optim
