// CudaDevice: a GPU by the CUDA driver: copies by its copy engines, memory that leaves the process
// as a descriptor, flags in host memory.
//
// Threads: as device.h says; every call makes the GPU's primary context (the one that LibTorch
// uses) current on its thread. The driver is found when the first GPU is asked for (libcuda.so.1);
// nothing is linked. Streams, memories and registrations keep what they need alive. What is
// different from the host's form:
//  - memory is no host address; only streams reach it;
//  - the host side of a copy, and every flag, lies in registered memory (Register). A copy from or
//    to other host memory is done, blocks the caller until the stream has come to it, and is
//    counted (unregistered_copies); an unregistered flag is an error of the stream;
//  - copies from host to host block the caller likewise;
//  - a poisoned flag ends waits for values up to INT64_MAX;
//  - the driver takes only so many operations of a stream ahead of the GPU (about a thousand), then
//    calls block: what a stream waits for must need no later call of the same thread;
//  - destroying a stream drops nothing: its work goes on. Memory and registrations must outlive the
//    work on them;
//  - memory exported as kIpc can be imported by another process only, and only while the maker
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

// Memory of a GPU, as its driver counts it.
struct DeviceBytes {
  uint64_t free = 0, total = 0;
};

class CudaDevice final : public Device {
 public:
  // Errors: kCudaUnavailable (no driver, no such GPU, or it lacks what is needed; the text says
  // which), kCudaFailed, kDeviceMemoryShort (no room for the context).
  static Result<std::unique_ptr<CudaDevice>> Open(const CudaDeviceOptions& options);
  static Result<std::unique_ptr<CudaDevice>> OpenByUuid(const GpuUuid& uuid);
  ~CudaDevice() override;

  std::string name() const override;  // "cuda:0"
  // Which GPU this is.
  const Gpu& gpu() const;
  int ordinal() const { return gpu().ordinal; }
  GpuUuid uuid() const { return gpu().uuid; }
  ExportForm export_form() const override;
  // Why export_form() is what it is: one line for `memserver check`, `trainer doctor` and the log.
  std::string form_note() const;
  // Errors: kCudaFailed.
  Result<DeviceBytes> MemoryBytes() const;
  // Copies whose host side was not registered, of all streams: each is a fault of the caller's that
  // costs speed.
  uint64_t unregistered_copies() const;

  Result<std::unique_ptr<Stream>> OpenStream() override;
  Status Prepare(const Kernel& kernel) override;
  // A stream made by other code in this GPU's primary context (a cudaStream_t or CUstream; null:
  // the default stream): used, not destroyed.
  std::unique_ptr<Stream> Borrow(void* native_stream);
  Result<std::unique_ptr<Registration>> Register(void* begin, uint64_t bytes) override;
  // In the device's export form, all zero. Errors: kMemoryMapFailed (0 bytes), kDeviceMemoryShort,
  // kCudaFailed.
  Result<std::unique_ptr<Memory>> CreateExportable(uint64_t bytes, UniqueFd* exported) override;
  // Either form; the descriptor tells which. Errors: kHandshakeBad (it is neither, or of another
  // size; the text says which), kMemoryMapFailed (0 bytes), kCudaFailed.
  Result<std::unique_ptr<Memory>> Import(const UniqueFd& exported, uint64_t bytes) override;

  // The CUstream of a stream that a CudaDevice opened or borrowed, for LibTorch and NCCL.
  static void* NativeOf(const Stream& stream);

 private:
  explicit CudaDevice(std::shared_ptr<CudaContext> context) : context_(std::move(context)) {}

  const std::shared_ptr<CudaContext> context_;
};

}  // namespace tidepool::device
