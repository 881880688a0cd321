// CudaMemory: GPU memory shared across processes, in both forms.
//
// Any thread. Memory made here takes whole units of 2 MiB or more, so that nothing else of the
// process is exported with it. No work on the memory may be in progress when it is destroyed.
//   kVmm  the descriptor is the driver's own: it holds the memory, and outlives the maker. Its size
//         cannot be read: exactly the agreed size is mapped, and the driver refuses if there is
//         less.
//   kIpc  the descriptor is a memfd with the 64 bytes of a handle, sealed against every change. The
//         maker must live as long as others use the memory; it cannot open its own handle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "base/unique_fd.h"
#include "device/cuda/cuda_context.h"
#include "device/device.h"

namespace tidepool::device {

class CudaMemory final : public Memory {
 public:
  // Allocates memory in the context's form, all zero. Errors: as CudaDevice::CreateExportable.
  static Result<std::unique_ptr<Memory>> Create(const std::shared_ptr<CudaContext>& context,
                                                uint64_t bytes, UniqueFd* exported);
  // Imports memory. Errors: as CudaDevice::Import.
  static Result<std::unique_ptr<Memory>> Import(const std::shared_ptr<CudaContext>& context,
                                                const UniqueFd& exported, uint64_t bytes);

  ~CudaMemory() override;
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  std::byte* data() const override { return reinterpret_cast<std::byte*>(address_); }
  uint64_t bytes() const override { return bytes_; }
  bool is_host() const override { return false; }

 private:
  enum class Kind { kReserved, kMapped, kAllocated, kOpened };  // how it is released
  using Handle = unsigned long long;                            // CUmemGenericAllocationHandle

  CudaMemory(std::shared_ptr<CudaContext> context, Kind kind, CudaAddress address)
      : context_(std::move(context)), kind_(kind), address_(address) {}
  static Result<std::unique_ptr<CudaMemory>> CreateVmm(const std::shared_ptr<CudaContext>& context,
                                                       uint64_t bytes, UniqueFd* exported);
  static Result<std::unique_ptr<CudaMemory>> CreateIpc(const std::shared_ptr<CudaContext>& context,
                                                       uint64_t bytes, UniqueFd* exported);
  static Result<std::unique_ptr<CudaMemory>> ImportVmm(const std::shared_ptr<CudaContext>& context,
                                                       int fd, uint64_t bytes);
  static Result<std::unique_ptr<CudaMemory>> ImportIpc(const std::shared_ptr<CudaContext>& context,
                                                       int fd, uint64_t bytes);
  // Maps `bytes` from the start of the allocation. `imported`: a refusal means that the peer
  // brought something else.
  static Result<std::unique_ptr<CudaMemory>> Map(const std::shared_ptr<CudaContext>& context,
                                                 Handle handle, uint64_t bytes, bool imported);
  Status Zero();

  const std::shared_ptr<CudaContext> context_;
  Kind kind_;
  CudaAddress address_;
  uint64_t bytes_ = 0;   // as requested
  uint64_t mapped_ = 0;  // kReserved, kMapped: of the address range
};

}  // namespace tidepool::device
