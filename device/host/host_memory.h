// HostMemory: memory of the host device: pages of a sealed memfd, mapped.
//
// Any thread. Made once (Create) and mapped by any number of processes (Map); the mapping is owned,
// the descriptor is not kept. The file is sealed against shrinking and growing before it leaves its
// maker, so that no holder of the descriptor can make an access of another process fault (SIGBUS).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "base/unique_fd.h"
#include "device/device.h"

namespace tidepool::device {

class HostMemory final : public Memory {
 public:
  // New zeroed pages, all touched before return. `bytes` is at least 1; the file's size is rounded
  // up to whole pages. Errors: kHostMemoryShort (nothing was touched), kMemoryMapFailed.
  static Result<std::unique_ptr<Memory>> Create(uint64_t bytes, UniqueFd* exported);
  // Maps a descriptor made by Create of `bytes`, in this process or in another one that may have
  // ended since. A peer may have sent it: it is mapped only if it is a memfd of that size with
  // those seals and with all pages present, since only the kernel controls the faults of such
  // memory. Errors: kHandshakeBad (names the mismatch), kMemoryMapFailed.
  static Result<std::unique_ptr<Memory>> Map(const UniqueFd& exported, uint64_t bytes);

  ~HostMemory() override;
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  std::byte* data() const override { return data_; }
  uint64_t bytes() const override { return bytes_; }
  bool is_host() const override { return true; }

 private:
  HostMemory(std::byte* data, uint64_t bytes) : data_(data), bytes_(bytes) {}
  static Result<std::unique_ptr<HostMemory>> MapShared(int fd, uint64_t bytes);

  std::byte* data_;
  uint64_t bytes_;
};

}  // namespace tidepool::device
