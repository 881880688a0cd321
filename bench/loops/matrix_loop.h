// MatrixLoop: products of bf16 matrices by cuBLAS, one after the other on one stream: the work that
// a trainer's GPU does while chunks are copied.
//
// One thread. cuBLAS is looked for when the loop is made (libcublas of LibTorch's wheel or of the
// toolkit, by LD_LIBRARY_PATH); nothing is linked. Other failures end the program.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "bench/gpu/gpu_plain.h"

namespace tidepool::bench {

class MatrixLoop {
 public:
  // Squares of `side` elements; `gpu` outlives the loop. Errors: kCudaUnavailable (no cuBLAS that
  // can be loaded), kCudaFailed (it does not start).
  static Result<std::unique_ptr<MatrixLoop>> Make(PlainGpu* gpu, uint64_t side);
  ~MatrixLoop();

  // Enqueues `count` products and waits for them; seconds.
  double Seconds(uint64_t count);
  double FlopsEach() const {
    return 2.0 * static_cast<double>(side_) * static_cast<double>(side_) *
           static_cast<double>(side_);
  }

 private:
  struct Library;
  MatrixLoop(std::unique_ptr<Library> library, void* handle, PlainGpu* gpu, uint64_t side);

  const std::unique_ptr<Library> library_;
  void* const handle_;
  const uint64_t side_;
  const std::unique_ptr<PlainStream> stream_;
  const std::unique_ptr<GpuBytes> memory_;  // a, b and the product
};

}  // namespace tidepool::bench
