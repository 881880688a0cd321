// SpecShelf: the job descriptions that clients have sent, decoded once for all ranks of a job, and
// counted as their user's memory for as long as anyone holds them.
//
// One thread (control); any thread may hold and release what it returns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>

#include "base/formats/content_hash.h"
#include "base/status.h"
#include "memserver/control/bounds/peer_memory.h"
#include "shm/spec/job_spec.h"

namespace tidepool::memserver {

class SpecShelf {
 public:
  explicit SpecShelf(const PeerMemory* memory) : memory_(memory) {}
  SpecShelf(const SpecShelf&) = delete;
  SpecShelf& operator=(const SpecShelf&) = delete;

  // Opens the share for what a user sends besides complete descriptions.
  PeerMemory::Share Open(uint32_t uid) const { return memory_->Open(uid); }
  // Decodes a description, or finds it decoded. `encoded` is the share of `bytes`, which ends here.
  // Errors: kJobSpecBad, kNotReady (no room for it now).
  Result<std::shared_ptr<const shm::JobSpec>> Decode(uint32_t uid, std::span<const std::byte> bytes,
                                                     PeerMemory::Share* encoded);
  // Bytes decoded since the last call, refused descriptions included.
  uint64_t TakeDecodedBytes() { return std::exchange(decoded_bytes_, 0); }

 private:
  struct Held {
    shm::JobSpec spec;
    PeerMemory::Share share;
  };
  const PeerMemory* const memory_;
  uint64_t decoded_bytes_ = 0;
  // By user and content: only ranks of one user share them, so nobody learns what others have.
  std::map<std::pair<uint32_t, ContentHash>, std::weak_ptr<const Held>> held_;
};

// Bytes of a decoded description.
uint64_t DecodedBytes(const shm::JobSpec& spec);

}  // namespace tidepool::memserver
