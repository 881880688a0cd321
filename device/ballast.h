// Ballast: device memory that a process holds to reserve room for another one's later use:
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

  // Takes the memory unless it is held already. Errors: those of Device::CreateExportable; then
  // nothing is held.
  Status Take();
  // Frees the memory before it returns.
  void Free() { memory_.reset(); }
  bool held() const { return memory_ != nullptr; }

 private:
  Device* const device_;
  const uint64_t bytes_;
  std::unique_ptr<Memory> memory_;
};

}  // namespace tidepool::device
