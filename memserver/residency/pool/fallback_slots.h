// FallbackSlots: room in the host pool for pieces that a drive did not take, each one piece of one
// epoch slot (like remapped sectors).
//
// One thread (the serve loop) owns it. Once a piece of an epoch slot has a fallback slot, it is
// written there and read from there, never again from the drive, until the job goes away. So each
// piece has one true place, and the rule of the two epoch slots holds for it as for the drive. Kept
// form: an extent of its own, with a page for a FallbackSlotRecord and behind it the piece as it
// would lie on the drive. The ChunkRecord names the chunk's newest one, and each names the one
// before it. Invariant: a fallback slot is named, by one 64-bit store, only when record and piece
// are complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "memserver/residency/pool/host_pool.h"
#include "memserver/residency/kept/kept_records.h"
#include "shm/spec/job_spec.h"

namespace tidepool::memserver {

struct FallbackSlot {
  ChunkId chunk = 0;
  uint32_t piece = 0;
  uint32_t slot = 0;  // epochs of this parity
  int error = 0;      // errno of the write that it was made for
  Extent extent;

  // The bytes of the piece, behind its page.
  std::byte* image() const { return extent.data + kPageBytes; }
};

class FallbackSlots {
 public:
  // Both outlive it.
  FallbackSlots(const shm::JobSpec* spec, HostPool* pool) : spec_(spec), pool_(pool) {}
  ~FallbackSlots();
  FallbackSlots(const FallbackSlots&) = delete;
  FallbackSlots& operator=(const FallbackSlots&) = delete;

  // Where the piece of this epoch lies in the pool, its page first; null if it lies on the drive.
  std::byte* Find(ChunkId chunk, uint32_t piece, uint64_t epoch) const;
  // Bytes that Add takes from the pool.
  uint64_t BytesFor(ChunkId chunk, uint32_t piece) const {
    return kPageBytes + PieceBytes(chunk, piece);
  }
  // Stores a piece. `image`: the piece, sealed. `at`: without its extent. False, and nothing
  // changed, if the pool has no run of that many bytes.
  bool Add(FallbackSlot at, std::span<const std::byte> image, ChunkRecord* record);
  // Reads the slots of a chunk that another server left. Errors: kKeptMemoryBad.
  Status Recover(ChunkId chunk, const ChunkRecord& record);
  uint64_t bytes() const { return bytes_; }
  std::span<const FallbackSlot> all() const { return all_; }

 private:
  uint64_t PieceBytes(ChunkId chunk, uint32_t piece) const;

  const shm::JobSpec* const spec_;
  HostPool* const pool_;
  std::vector<FallbackSlot> all_;
  uint64_t bytes_ = 0;
};

}  // namespace tidepool::memserver
