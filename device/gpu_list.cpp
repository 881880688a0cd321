#include "device/gpu_list.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>

#include "device/cuda/cuda_driver.h"

namespace tidepool::device {
namespace {

// True if the GPU has all attributes; one that the driver does not know counts as missing.
Result<bool> HasAll(const CudaDriver& cuda, int device,
                    std::initializer_list<CudaAttribute> attributes) {
  bool all = true;
  for (const CudaAttribute attribute : attributes) {
    int value = 0;
    const CudaCode code = cuda.device_attribute(&value, attribute, device);
    if (code != kCudaSuccess && code != kCudaInvalidValue)
      return cuda.Error("asking what a GPU can", cuda.device_attribute.name, code);
    all &= code == kCudaSuccess && value != 0;
  }
  return all;
}

}  // namespace

std::string Text(const GpuUuid& uuid) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text = "GPU-";
  for (size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kDigits[uuid[i] >> 4];
    text += kDigits[uuid[i] & 15];
  }
  return text;
}

Result<Gpu> ReadGpu(const CudaDriver& cuda, int ordinal) {
  Gpu gpu;
  gpu.ordinal = ordinal;
  const std::string doing = "asking the driver for GPU " + std::to_string(ordinal);
  int device = 0;
  TP_RETURN_IF_ERROR(cuda.Try(doing, cuda.device_get, &device, ordinal));

  CudaUuid uuid;
  TP_RETURN_IF_ERROR(cuda.Try(doing, cuda.device_uuid, &uuid, device));
  std::memcpy(gpu.uuid.data(), uuid.bytes.data(), gpu.uuid.size());

  std::array<char, 128> text{};
  TP_RETURN_IF_ERROR(
      cuda.Try(doing, cuda.device_name, text.data(), static_cast<int>(text.size()) - 1, device));
  gpu.name = text.data();
  TP_RETURN_IF_ERROR(
      cuda.Try(doing, cuda.device_pci, text.data(), static_cast<int>(text.size()) - 1, device));
  gpu.pci_address = text.data();
  std::transform(
      gpu.pci_address.begin(), gpu.pci_address.end(), gpu.pci_address.begin(),
      [](char c) { return c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c; });

  size_t total = 0;
  TP_RETURN_IF_ERROR(cuda.Try(doing, cuda.device_total, &total, device));
  gpu.total_bytes = total;
  // Requires a unified address space that includes registered host memory, where flags lie.
  TP_ASSIGN_OR_RETURN(
      gpu.wait_value64,
      HasAll(cuda, device, {kCudaUnifiedAddressing, kCudaHostRegisterSupported, kCudaMemOps64}));
  TP_ASSIGN_OR_RETURN(gpu.vmm_export,
                      HasAll(cuda, device, {kCudaVmmSupported, kCudaPosixHandleSupported}));
  TP_ASSIGN_OR_RETURN(gpu.ipc_export, HasAll(cuda, device, {kCudaIpcSupported}));
  TP_ASSIGN_OR_RETURN(gpu.mps, HasAll(cuda, device, {kCudaMpsEnabled}));
  return gpu;
}

Result<std::vector<Gpu>> ListGpus() {
  TP_ASSIGN_OR_RETURN(const CudaDriver* cuda, CudaDriver::Load());
  int count = 0;
  TP_RETURN_IF_ERROR(cuda->Try("counting the GPUs", cuda->device_count, &count));
  if (count == 0)
    return Status(ErrorId::kCudaUnavailable, "the CUDA driver shows no GPU")
        .Fix("look at CUDA_VISIBLE_DEVICES and nvidia-smi");

  std::vector<Gpu> gpus;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    TP_ASSIGN_OR_RETURN(Gpu gpu, ReadGpu(*cuda, ordinal));
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

}  // namespace tidepool::device
