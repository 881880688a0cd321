// Segment: a sealed memfd and its mapping: unnamed shared memory that nobody can shrink under its
// user.
//
// Any thread may create one; the user of the class defines the ownership of the bytes. Nothing
// appears in /dev/shm. Seals: SHRINK | GROW | SEAL always; FUTURE_WRITE if the peer may only read
// (set after our own writable mapping exists).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "base/unique_fd.h"

namespace tidepool::shm {

// What the other process may do with the mapping.
enum class PeerAccess { kReadWrite, kReadOnly };

class Segment {
 public:
  // Creates, sizes, maps, touches every page (so that no fault can fail later) and seals. `bytes`
  // is rounded up to 4 KiB. The mapping is not inherited by fork and not part of core dumps.
  // Errors: kMemoryMapFailed.
  static Result<std::unique_ptr<Segment>> Create(const char* label, uint64_t bytes,
                                                 PeerAccess peer);
  // Maps a descriptor received from the server. Checks size and seals before mapping. Errors:
  // kHandshakeBad, kMemoryMapFailed.
  static Result<std::unique_ptr<Segment>> Map(UniqueFd fd, uint64_t bytes, PeerAccess peer);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }

 private:
  struct Mapping;  // hides Boost.Interprocess's mapped_region
  Segment(UniqueFd fd, std::unique_ptr<Mapping> mapping, uint64_t bytes);
  UniqueFd fd_;
  std::unique_ptr<Mapping> mapping_;
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace tidepool::shm
