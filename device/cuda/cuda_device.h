// CudaDevice: a GPU by the CUDA driver: copies by its copy engines, memory exported from the
// process as a descriptor, flags in host memory.
//
// Threads: as device.h says; every call makes the GPU's primary context (the one that LibTorch
// uses) current on its thread. The driver (libcuda.so.1) is loaded when a GPU is first used;
// nothing is linked. Streams, memories and registrations keep alive what they need. Differences
// from the host device:
//  - memory has no host address; only streams access it;
//  - the host side of a copy, and every flag, must be in registered memory (Register). A copy from
//    or to other host memory is made, but blocks the caller until the stream has reached it, and is
//    counted (unregistered_copies); an unregistered flag is an error of the stream;
//  - copies from host to host block the caller likewise;
//  - a poisoned flag ends waits for values up to INT64_MAX;
//  - the driver accepts a limited number of operations of a stream ahead of the GPU (about a
//    thousand), then calls block: a stream's wait must not need a later call of the same thread;
//  - destroying a stream drops nothing: its work continues. Memory and registrations must outlive
//    the work on them;
//  - memory exported as kIpc can only be imported by another process, and only while its maker
//    lives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "device/cuda/cuda_options.h"
#include "device/device.h"
#include "device/gpu_list.h"

namespace tidepool::device {

class CudaContext;

// A GPU's memory, as its driver counts it.
struct DeviceBytes {
  uint64_t free = 0, total = 0;
};

class CudaDevice final : public Device {
 public:
  // Opens the GPU. Errors: kCudaUnavailable (no driver, no such GPU, or it lacks a required
  // feature; the text says which), kCudaFailed, kDeviceMemoryShort (no room for the context).
  static Result<std::unique_ptr<CudaDevice>> Open(const CudaDeviceOptions& options);
  static Result<std::unique_ptr<CudaDevice>> OpenByUuid(const GpuUuid& uuid);
  ~CudaDevice() override;

  std::string name() const override;  // "cuda:0"
  // The GPU's identity.
  const Gpu& gpu() const;
  int ordinal() const { return gpu().ordinal; }
  GpuUuid uuid() const { return gpu().uuid; }
  ExportForm export_form() const override;
  // The reason for export_form(), in one line for `memserver check`, `trainer doctor` and the log.
  std::string form_note() const;
  // Free and total memory. Errors: kCudaFailed.
  Result<DeviceBytes> MemoryBytes() const;
  // Number of copies of all streams whose host side was not registered: each is a fault of the
  // caller's that costs speed.
  uint64_t unregistered_copies() const;

  Result<std::unique_ptr<Stream>> OpenStream() override;
  Status Prepare(const Kernel& kernel) override;
  // A stream made by other code in this GPU's primary context (a cudaStream_t or CUstream; null:
  // the default stream); not destroyed with the result.
  std::unique_ptr<Stream> Borrow(void* native_stream);
  Result<std::unique_ptr<Registration>> Register(void* begin, uint64_t bytes) override;
  // Memory in the device's export form, all zero. Errors: kMemoryMapFailed (0 bytes),
  // kDeviceMemoryShort, kCudaFailed.
  Result<std::unique_ptr<Memory>> CreateExportable(uint64_t bytes, UniqueFd* exported) override;
  // Imports either form; the descriptor shows which. Errors: kHandshakeBad (it is neither, or of
  // another size; the text says which), kMemoryMapFailed (0 bytes), kCudaFailed.
  Result<std::unique_ptr<Memory>> Import(const UniqueFd& exported, uint64_t bytes) override;

  // The CUstream of a stream that a CudaDevice opened or borrowed, for LibTorch and NCCL.
  static void* NativeOf(const Stream& stream);

 private:
  explicit CudaDevice(std::shared_ptr<CudaContext> context) : context_(std::move(context)) {}

  const std::shared_ptr<CudaContext> context_;
};

}  // namespace tidepool::device
