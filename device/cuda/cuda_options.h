// CudaDeviceOptions: options for opening a GPU.
//
// A plain value.
#pragma once

#include <cstdint>
#include <optional>

#include "base/units.h"
#include "device/device.h"
#include "device/gpu_list.h"

namespace tidepool::device {

struct CudaDeviceOptions {
  int ordinal = 0;
  // Export form. None: kVmm if the GPU supports it, else kIpc; form_note() gives the reason.
  std::optional<ExportForm> form = std::nullopt;
  uint64_t piece_bytes = 64 * kGiB;  // host memory is registered in pieces of at most this
};

}  // namespace tidepool::device
