// Ballast: memory of a device that a process holds so that another one finds room when it comes:
// memserver's context on a trainer's GPU.
//
// One thread. The device outlives it.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "device/device.h"

namespace tidepool::device {

class Ballast {
 public:
  Ballast(Device* device, uint64_t bytes) : device_(device), bytes_(bytes) {}

  // Holds it, where it does not yet. Errors: those of Device::CreateExportable; then nothing is
  // held.
  Status Take();
  // The memory is free when this returns.
  void Free() { memory_.reset(); }
  bool held() const { return memory_ != nullptr; }

 private:
  Device* const device_;
  const uint64_t bytes_;
  std::unique_ptr<Memory> memory_;
};

}  // namespace tidepool::device
