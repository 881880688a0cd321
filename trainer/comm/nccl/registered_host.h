// RegisteredHost: pages of this process's memory, registered so that a device's streams access them
// at full speed: flag words and staging buffers.
//
// One thread; owned (move only), initially zero. No stream may still use it when it is destroyed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "device/device.h"

namespace tidepool::trainer {

class RegisteredHost {
 public:
  // At least `bytes`, in whole pages. Errors: kMemoryMapFailed, kCudaFailed.
  static Result<RegisteredHost> Create(device::Device* device, uint64_t bytes);
  RegisteredHost() = default;
  RegisteredHost(RegisteredHost&&) = default;
  RegisteredHost& operator=(RegisteredHost&&) = default;

  // The pages.
  std::byte* data() const { return pages_.get(); }
  uint64_t bytes() const { return pages_.get_deleter().bytes; }
  // A stream may still use the pages: leaks them for the life of the process.
  void Abandon();

 private:
  struct Unmap {
    uint64_t bytes;  // 0 without pages: as unique_ptr's default constructor leaves it
    void operator()(std::byte* pages) const;
  };

  std::unique_ptr<std::byte, Unmap> pages_;
  std::unique_ptr<device::Registration> registration_;  // is destroyed before the pages
};

}  // namespace tidepool::trainer
