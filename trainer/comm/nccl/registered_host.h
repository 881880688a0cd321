// RegisteredHost: some pages of this process's memory that a device's streams reach at full speed:
// for flag words and staging.
//
// One thread; owned (move only), all zero at first. No stream may still use it when it ends.
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
  // A stream may still use it: it stays for the life of the process.
  void Abandon();

 private:
  struct Unmap {
    uint64_t bytes;  // 0 without pages: unique_ptr sets it so
    void operator()(std::byte* pages) const;
  };

  std::unique_ptr<std::byte, Unmap> pages_;
  std::unique_ptr<device::Registration> registration_;  // ends before the pages do
};

}  // namespace tidepool::trainer
