// CudaKernels: the kernels of a GPU's context: loaded images, and the launch parameters of their
// functions.
//
// Any thread on which the context is current. Invariant: loaded images stay until Unload.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "base/status.h"
#include "device/cuda/cuda_driver.h"
#include "device/kernel.h"

namespace tidepool::device {

class CudaKernels {
 public:
  explicit CudaKernels(const CudaDriver& cuda) : cuda_(cuda) {}
  CudaKernels(const CudaKernels&) = delete;
  CudaKernels& operator=(const CudaKernels&) = delete;

  struct Ready {
    CUfunc_st* function = nullptr;
    uint64_t blocks = 0;  // resident on the GPU at once
  };
  // The kernel on the context's GPU `device`; loads it first if needed. Errors: as Device::Prepare.
  Result<Ready> Find(const Kernel& kernel, int device);

  // True if nothing is loaded.
  bool empty() const;
  // Call it when nothing will be launched any more.
  void Unload();

 private:
  Result<CUmod_st*> ModuleOf(const Kernel& kernel);
  Status Error(const Kernel& kernel, const char* call, CudaCode code) const;

  const CudaDriver& cuda_;
  mutable std::mutex mutex_;
  std::map<const KernelImage*, CUmod_st*> modules_;
  std::map<const Kernel*, Ready> ready_;
};

}  // namespace tidepool::device
