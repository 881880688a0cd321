#include "device/cuda/cuda_device.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "device/cuda/cuda_context.h"
#include "device/cuda/cuda_host_ranges.h"
#include "device/cuda/cuda_memory.h"
#include "device/cuda/cuda_stream.h"

namespace tidepool::device {
namespace {

class CudaRegistration final : public Registration {
 public:
  CudaRegistration() = default;
  ~CudaRegistration() override {
    for (void* piece : pieces_) CudaHostRanges::OfProcess().Remove(piece);
  }
  CudaRegistration(const CudaRegistration&) = delete;
  CudaRegistration& operator=(const CudaRegistration&) = delete;

  Status Add(const std::shared_ptr<CudaContext>& context, void* begin, uint64_t bytes) {
    TP_RETURN_IF_ERROR(CudaHostRanges::OfProcess().Add(context, begin, bytes));
    pieces_.push_back(begin);
    return {};
  }

 private:
  std::vector<void*> pieces_;
};

}  // namespace

Result<std::unique_ptr<CudaDevice>> CudaDevice::Open(const CudaDeviceOptions& options) {
  TP_ASSIGN_OR_RETURN(std::shared_ptr<CudaContext> context, CudaContext::Open(options));
  // make_unique cannot call the private constructor.
  return std::unique_ptr<CudaDevice>(new CudaDevice(std::move(context)));
}

Result<std::unique_ptr<CudaDevice>> CudaDevice::OpenByUuid(const GpuUuid& uuid) {
  TP_ASSIGN_OR_RETURN(const std::vector<Gpu> gpus, ListGpus());
  const auto found =
      std::find_if(gpus.begin(), gpus.end(), [&uuid](const Gpu& gpu) { return gpu.uuid == uuid; });
  if (found != gpus.end()) return Open({.ordinal = found->ordinal});
  std::string shown;
  for (const Gpu& gpu : gpus) shown += (shown.empty() ? "" : ", ") + Text(gpu.uuid);
  return Status(ErrorId::kCudaUnavailable, "this process sees no " + Text(uuid))
      .Why("it sees " + shown)
      .Fix("look at CUDA_VISIBLE_DEVICES");
}

CudaDevice::~CudaDevice() = default;

std::string CudaDevice::name() const {
  return "cuda:" + std::to_string(gpu().ordinal);
}

const Gpu& CudaDevice::gpu() const {
  return context_->gpu();
}

ExportForm CudaDevice::export_form() const {
  return context_->form();
}

std::string CudaDevice::form_note() const {
  return context_->form_note();
}

uint64_t CudaDevice::unregistered_copies() const {
  return context_->unregistered_copies.load(std::memory_order_relaxed);
}

Result<DeviceBytes> CudaDevice::MemoryBytes() const {
  const CudaDriver& cuda = context_->cuda();
  TP_RETURN_IF_ERROR(context_->MakeCurrent());
  size_t free = 0, total = 0;
  TP_RETURN_IF_ERROR(cuda.Try("asking for the GPU's free memory", cuda.memory_info, &free, &total));
  return DeviceBytes{.free = free, .total = total};
}

Result<std::unique_ptr<Stream>> CudaDevice::OpenStream() {
  return CudaStream::Open(context_);
}

Status CudaDevice::Prepare(const Kernel& kernel) {
  TP_RETURN_IF_ERROR(context_->MakeCurrent());
  return context_->KernelOf(kernel).status();
}

std::unique_ptr<Stream> CudaDevice::Borrow(void* native_stream) {
  return std::make_unique<CudaStream>(context_, static_cast<CUstream_st*>(native_stream), false);
}

void* CudaDevice::NativeOf(const Stream& stream) {
  const auto* cuda = dynamic_cast<const CudaStream*>(&stream);
  TP_CHECK(cuda != nullptr, "the stream is none of a CudaDevice");
  return cuda->native();
}

Result<std::unique_ptr<Registration>> CudaDevice::Register(void* begin, uint64_t bytes) {
  auto registration = std::make_unique<CudaRegistration>();
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t piece = std::min(bytes - done, context_->piece_bytes());
    TP_RETURN_IF_ERROR(registration->Add(context_, static_cast<std::byte*>(begin) + done, piece));
    done += piece;
  }
  return std::unique_ptr<Registration>(std::move(registration));
}

Result<std::unique_ptr<Memory>> CudaDevice::CreateExportable(uint64_t bytes, UniqueFd* exported) {
  return CudaMemory::Create(context_, bytes, exported);
}

Result<std::unique_ptr<Memory>> CudaDevice::Import(const UniqueFd& exported, uint64_t bytes) {
  return CudaMemory::Import(context_, exported, bytes);
}

}  // namespace tidepool::device
