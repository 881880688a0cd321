// CudaContext: a GPU's primary context, held, with what was decided when the device was opened.
//
// Any thread. The device, its streams, memories and registrations share it: the one that is
// destroyed last gives the context back.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "device/cuda/cuda_driver.h"
#include "device/cuda/cuda_kernels.h"
#include "device/cuda/cuda_options.h"

namespace tidepool::device {

class CudaContext {
 public:
  // Errors: as CudaDevice::Open.
  static Result<std::shared_ptr<CudaContext>> Open(const CudaDeviceOptions& options);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  const CudaDriver& cuda() const { return cuda_; }
  const Gpu& gpu() const { return gpu_; }
  ExportForm form() const { return form_; }
  const std::string& form_note() const { return form_note_; }
  uint64_t piece_bytes() const { return piece_bytes_; }
  // Requires that this context is current. Errors: as Device::Prepare.
  Result<CudaKernels::Ready> KernelOf(const Kernel& kernel) {
    return kernels_.Find(kernel, device_);
  }

  // Every call of the driver but those about the driver itself goes to the context that is current
  // on the calling thread. Errors: kCudaFailed.
  Status MakeCurrent() const;

  std::atomic<uint64_t> unregistered_copies{0};

 private:
  CudaContext(const CudaDriver& cuda, Gpu gpu, uint64_t piece_bytes)
      : cuda_(cuda), gpu_(std::move(gpu)), piece_bytes_(piece_bytes), kernels_(cuda) {}
  Status Choose(const std::optional<ExportForm>& form);
  Status Retain();

  const CudaDriver& cuda_;
  const Gpu gpu_;
  const uint64_t piece_bytes_;
  ExportForm form_ = ExportForm::kVmm;  // never changes after Open, as all below
  std::string form_note_;
  int device_ = 0;
  CUctx_st* handle_ = nullptr;
  CudaKernels kernels_;
};

}  // namespace tidepool::device
