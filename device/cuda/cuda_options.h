// CudaDeviceOptions: how a GPU is opened.
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
  // How memory is exported. None: kVmm where the GPU can, else kIpc, and form_note() says so.
  std::optional<ExportForm> form = std::nullopt;
  uint64_t piece_bytes = 64 * kGiB;  // host memory is registered in pieces of at most this
};

}  // namespace tidepool::device
