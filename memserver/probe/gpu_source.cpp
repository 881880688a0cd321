#include "memserver/probe/gpu_source.h"

#include <dlfcn.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "base/units.h"
#include "device/cuda/cuda_device.h"
#include "memserver/probe/done_probe.h"

namespace tidepool::memserver {
namespace {

// Free memory of a GPU according to the driver's management library, which needs no context; 0 if
// that library is missing.
uint64_t FreeByManagement(const device::GpuUuid& uuid) {
  struct Bytes {
    unsigned long long total, free, used;
  };
  static void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return 0;
  const auto init = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
  const auto shutdown = reinterpret_cast<int (*)()>(dlsym(library, "nvmlShutdown"));
  const auto find =
      reinterpret_cast<int (*)(const char*, void**)>(dlsym(library, "nvmlDeviceGetHandleByUUID"));

  const auto ask =
      reinterpret_cast<int (*)(void*, Bytes*)>(dlsym(library, "nvmlDeviceGetMemoryInfo"));
  if (init == nullptr || shutdown == nullptr || find == nullptr || ask == nullptr || init() != 0)
    return 0;
  void* device = nullptr;
  Bytes bytes{};
  const bool told = find(device::Text(uuid).c_str(), &device) == 0 && ask(device, &bytes) == 0;
  shutdown();
  return told ? bytes.free : 0;
}

Result<OpenedGpu> OpenCuda(const device::Gpu& gpu) {
  OpenedGpu opened;
  opened.free_before = FreeByManagement(gpu.uuid);
  TP_ASSIGN_OR_RETURN(std::unique_ptr<device::CudaDevice> cuda,
                      device::CudaDevice::OpenByUuid(gpu.uuid));
  opened.form_note = cuda->form_note();
  const device::CudaDevice* device = cuda.get();
  const bool managed = opened.free_before != 0;
  // Both numbers must come from the same source, or their difference would be meaningless.
  opened.free_bytes = [device, managed, uuid = gpu.uuid]() -> Result<uint64_t> {
    if (managed) return FreeByManagement(uuid);
    TP_ASSIGN_OR_RETURN(const device::DeviceBytes bytes, device->MemoryBytes());
    return bytes.free;
  };
  opened.device = std::move(cuda);
  return opened;
}

}  // namespace

GpuSource CudaGpus(std::optional<DoneBy> done, Clock* clock) {
  GpuSource source{[] { return device::ListGpus(); }, OpenCuda,
                   [clock](device::Device* device, const device::Gpu& gpu) {
                     return ProbeDone(device, gpu, clock);
                   },
                   clock};
  if (!done) return source;

  source.choose_done = {};
  source.open = [by = *done](const device::Gpu& gpu) -> Result<OpenedGpu> {
    TP_ASSIGN_OR_RETURN(OpenedGpu opened, OpenCuda(gpu));
    opened.done = {by, "as --gpu-done says"};
    return opened;
  };
  return source;
}

std::string WhatItLacks(const device::Gpu& gpu) {
  if (!gpu.wait_value64) return "its streams cannot wait for 64-bit flags: it cannot be used";
  if (!gpu.vmm_export && !gpu.ipc_export)
    return "its memory cannot leave a process: it cannot be used";
  if (gpu.mps)
    return "MPS shares it: a fault of another client of MPS would end memserver's context too, so "
           "no states may lie there";
  return gpu.vmm_export
             ? ""
             : "its memory leaves a process as a handle (ipc) only, not as a descriptor (vmm)";
}

std::string Text(const device::Gpu& gpu) {
  const std::string forms = gpu.vmm_export   ? (gpu.ipc_export ? "vmm, ipc" : "vmm")
                            : gpu.ipc_export ? "ipc"
                                             : "nothing";
  return std::to_string(gpu.ordinal) + ": " + gpu.name + " (" + device::Text(gpu.uuid) + "), " +
         FormatBytes(gpu.total_bytes) + ", exports " + forms +
         (gpu.wait_value64 ? "" : ", no wait-value") + (gpu.mps ? ", under MPS" : "");
}

std::string GpusLine(const GpuSource& source) {
  if (!source.list) return "none (--gpu none)";
  auto gpus = source.list();
  if (!gpus.ok()) return "none: " + gpus.status().what();
  std::string line;
  for (const device::Gpu& gpu : *gpus) line += (line.empty() ? "" : "; ") + Text(gpu);
  return line;
}

}  // namespace tidepool::memserver
