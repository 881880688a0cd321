// ListGpus: the GPUs that the CUDA driver shows this process, and which of the features used by
// Tidepool each has.
//
// Any thread. The first call starts the driver (once per process; up to a second with GPUs); it
// makes no context and takes no GPU memory.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace tidepool::device {

using GpuUuid = std::array<uint8_t, 16>;

// "GPU-6c3e1c5a-...", as nvidia-smi writes it.
std::string Text(const GpuUuid& uuid);

class CudaDriver;

// One GPU and its features.
struct Gpu {
  int ordinal = 0;  // of the driver, after CUDA_VISIBLE_DEVICES
  GpuUuid uuid = {};
  std::string name;         // "NVIDIA H200"
  std::string pci_address;  // as in device/topology.h
  uint64_t total_bytes = 0;
  bool wait_value64 = false;  // streams wait for 64-bit flags; without it the GPU cannot be used
  bool vmm_export = false;    // memory is exported as the descriptor of an allocation
                              // (ExportForm::kVmm)
  bool ipc_export = false;    // memory is exported as a handle (ExportForm::kIpc)
  // This process is a client of the Multi-Process Service on it: a fault of one client ends all.
  bool mps = false;
};

// All GPUs by ordinal, at least one. Errors: kCudaUnavailable (the text says why there is none),
// kCudaFailed.
Result<std::vector<Gpu>> ListGpus();
// One GPU. Errors: kCudaFailed.
Result<Gpu> ReadGpu(const CudaDriver& cuda, int ordinal);

}  // namespace tidepool::device
