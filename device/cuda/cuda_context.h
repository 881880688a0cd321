// CudaContext: holds a GPU's primary context, with the choices made when the device was opened.
//
// Any thread. The device, its streams, memories and registrations share it; the last of them to be
// destroyed releases the context.
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
  // Opens the context. Errors: as CudaDevice::Open.
  static Result<std::shared_ptr<CudaContext>> Open(const CudaDeviceOptions& options);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  const CudaDriver& cuda() const { return cuda_; }
  const Gpu& gpu() const { return gpu_; }
  ExportForm form() const { return form_; }
  const std::string& form_note() const { return form_note_; }
  uint64_t piece_bytes() const { return piece_bytes_; }
  // Finds a kernel. Requires that this context is current. Errors: as Device::Prepare.
  Result<CudaKernels::Ready> KernelOf(const Kernel& kernel) {
    return kernels_.Find(kernel, device_);
  }

  // Makes the context current on the calling thread, to which every driver call applies except
  // those about the driver itself. Errors: kCudaFailed.
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
  ExportForm form_ = ExportForm::kVmm;  // fixed after Open, like all below
  std::string form_note_;
  int device_ = 0;
  CUctx_st* handle_ = nullptr;
  CudaKernels kernels_;
};

}  // namespace tidepool::device
