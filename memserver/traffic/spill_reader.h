// SpillReader: reads the states of spilled chunks for a save or a checkpoint, with the checks that
// all NVMe data gets.
//
// One thread at a time, which blocks (one that reads for a save); made by the serve loop. Requires
// that the job stays, and that the slots of the epoch in which the reader was made are not written:
// each chunk may be updated at most once meanwhile. The serve loop ensures both.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "memserver/residency/job_states.h"
#include "nvme/page_memory.h"
#include "nvme/piece.h"

namespace tidepool::memserver {

class SpillReader {
 public:
  struct File {  // the data file of a directory
    int fd = -1;
    uint64_t store = 0;
  };
  SpillReader(const JobStates& states, std::vector<File> files);

  // Reads fp32 weights from `element` of `chunk` on. Errors: kNvmeIoFailed, kNvmeDataBad,
  // kMemoryMapFailed.
  Status Read(ChunkId chunk, uint64_t element, std::span<float> values);
  // Reads all planes of a piece, laid out as in SpilledPieceOf; valid until the next call. Errors:
  // the same.
  Result<std::span<const std::byte>> Piece(ChunkId chunk, uint32_t piece);

 private:
  Status Load(ChunkId chunk, uint32_t piece);
  // Copies the master of the loaded piece, from its element `first` on.
  void CopyMaster(uint64_t first, std::span<float> values) const;
  uint64_t PieceElements(ChunkId chunk, uint32_t piece) const;
  Status ReadWhole(const File& file, uint64_t offset, std::span<std::byte> bytes) const;
  // The piece's place in the pool; null: it is on the drive.
  const std::byte* FindFallbackSlot(ChunkId chunk, uint32_t piece) const;

  const JobStates& states_;  // JobStates::saved
  const std::shared_ptr<const shm::JobSpec> spec_;
  const std::vector<File> files_;
  const uint64_t job_nonce_;
  const uint64_t epoch_;
  std::vector<FallbackSlot> fallback_slots_;  // of this epoch's slot
  std::optional<nvme::PageMemory> buffer_;
  ChunkId chunk_ = shm::kNoSpill;  // the contents of the buffer
  uint32_t piece_ = 0;
};

}  // namespace tidepool::memserver
