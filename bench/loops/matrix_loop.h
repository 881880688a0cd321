// MatrixLoop: sequential products of bf16 matrices by cuBLAS on one stream: the work of a trainer's
// GPU while chunks are copied.
//
// One thread. cuBLAS is loaded when the loop is made (libcublas of LibTorch's wheel or of the
// toolkit, by LD_LIBRARY_PATH); nothing is linked. Other failures end the program.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "bench/gpu/gpu_plain.h"

namespace tidepool::bench {

class MatrixLoop {
 public:
  // Square matrices of `side`; `gpu` outlives the loop. Errors: kCudaUnavailable (no loadable
  // cuBLAS), kCudaFailed (it does not start).
  static Result<std::unique_ptr<MatrixLoop>> Make(PlainGpu* gpu, uint64_t side);
  ~MatrixLoop();

  // Enqueues `count` products and waits for them; returns seconds.
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
