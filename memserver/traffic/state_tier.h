// StateTier: the NVMe directories of the daemon: their ranges, the staging slots, and the pieces on
// their way between them.
//
// One thread (the serve loop), after the constructor. No call blocks or, on the data path,
// allocates. Staging memory is private: a late read of a server that has died never lands in memory
// that another one uses. Every transfer's end comes back from Next, also a failed one; one whose
// answer does not come is told by NextLate, and may be disowned: its staging, and the range of its
// job, are kept until it comes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "memserver/residency/job_states.h"
#include "memserver/traffic/staged_piece.h"
#include "nvme/slot_store.h"
#include "shm/spec/state_footprint.h"

namespace tidepool::memserver {

// Names the ranges of a job's states that were on the host before; those of jobs are odd.
inline uint64_t DemotedKey(uint64_t job_nonce) {
  return job_nonce ^ 1;
}

// A directory as the tier is given it.
struct TierDirectory {
  std::string path;
  nvme::Manifest manifest;
  int data_fd = -1;  // for saves, which read on their own thread
};

struct TierTransfer {
  nvme::IoKind kind = nvme::IoKind::kRead;
  uint32_t staging = 0;
  uint32_t directory = 0;
  uint64_t offset = 0;  // of the piece's header in the data file
  uint64_t payload_bytes = 0;
  JobId job = 0;
  uint64_t nonce = 0;  // of the job; of one that writes: the name of the range
  ChunkId chunk = 0;
  uint32_t piece = 0;
};

struct TierDone {
  nvme::IoKind kind = nvme::IoKind::kRead;
  uint32_t staging = 0;
  JobId job = 0;
  int error = 0;  // 0, or an errno
  uint64_t offset = 0;
  uint32_t directory = 0;
};

// A transfer whose answer does not come.
struct TierLate {
  TierTransfer transfer;  // of the directory's own tables where it is none of a job
  uint64_t offset = 0;    // of the block that is missing
  int64_t since_ns = 0, waited_ns = 0;
  bool of_tables = false;
  bool lost = false;  // told for the second time: it has taken longer than anybody waits
};

struct TierOptions {
  uint32_t block_bytes = kMiB;           // of one read or write
  int64_t late_ns = 30 * kNsPerSecond;   // an answer that takes longer is told
  int64_t lost_ns = 300 * kNsPerSecond;  // one that takes longer is waited for no more
};

class StateTier {
 public:
  // Pieces in staging: enough to read, update and write at once at the speed of several drives,
  // which need some 64 MiB out; 144 MiB.
  static constexpr uint32_t kStagingSlots = 48;
  // Of one piece with its header; of one staging slot.
  static constexpr uint64_t kPieceBytesMax =
      nvme::kPieceHeaderBytes + shm::kSpilledPlanesMax * shm::kPieceElements * sizeof(float);
  static uint64_t MemoryBytes(size_t directories);

  // The files of `queue`: for directory d its data file at 3 d, its manifests behind. `memory`:
  // MemoryBytes of whole pages.
  StateTier(nvme::IoQueue* queue, const Clock* clock, std::vector<TierDirectory> directories,
            std::span<std::byte> memory, const TierOptions& options = {});

  // Largest range that a job can get, by directory; 0 of one that takes no changes any more.
  std::vector<uint64_t> LargestFree() const;
  // By directory, with or without jobs in it; 0 for one that takes no more.
  std::vector<uint64_t> Capacities() const;
  // Ranges for the job's spilled chunks; false, and nothing taken, when there is no gap.
  bool Reserve(uint64_t nonce, JobStates* states);
  // The same for states that are to leave the host: `bytes` by directory, under a name of their own
  // (DemotedKey). `offsets`, by directory, is filled in. False also while ranges of that name are
  // kept for a write that has not been answered.
  bool ReserveRanges(uint64_t key, std::span<const uint64_t> bytes, std::vector<uint64_t>* offsets);
  bool HasRanges(uint64_t key) const;
  // The directory knows the job, by what was placed there at its admission or what was moved there
  // later.
  bool HasRangeIn(uint32_t directory, uint64_t nonce) const;
  // All that was written to the ranges of `key` is to reach the drives, and their manifests, for
  // good: IsDurable then.
  void Commit(uint64_t key, uint64_t epoch);
  // The ranges that a job found in kept memory has.
  // A directory that knows it is at another place; or one that should does not.
  enum class Adopted { kYes, kOtherOrder, kUnknown };
  Adopted Adopt(uint64_t nonce, JobStates* states);
  // What disowned transfers may still write to goes with the last of them.
  void Remove(uint64_t nonce);
  // Jobs of a server before this one that nobody has adopted.
  void RemoveAllBut(const std::vector<uint64_t>& nonces);
  // The ranges of the job have reached the manifests of its directories for good.
  bool IsDurable(const JobStates& states) const { return IsDurable(states.nvme_bytes()); }
  bool IsDurable(std::span<const uint64_t> bytes) const;  // of the directories where they are not 0
  // A directory that the job uses and whose flush has failed; null where there is none.
  const TierDirectory* PoisonedOf(const JobStates& states) const {
    return PoisonedOf(states.nvme_bytes());
  }
  const TierDirectory* PoisonedOf(std::span<const uint64_t> bytes) const;

  // For a transfer from or to this directory; one that does not answer leaves some to the others.
  std::optional<uint32_t> TakeStaging(uint32_t directory);
  bool HasStaging(uint32_t directory) const {
    return !free_.empty() && taken_[directory] < taken_max_;
  }
  // For what is not due yet: leaves others half of what the directory may have, and a third of all.
  bool HasStagingToSpare(uint32_t directory) const {
    return free_.size() > kStagingSlots / 3 && taken_[directory] < taken_max_ / 2;
  }
  void ReturnStaging(uint32_t staging);
  // Nobody waits for its transfer any more; it is returned when that has ended.
  void Disown(uint32_t staging);
  uint32_t staging_free() const { return static_cast<uint32_t>(free_.size()); }
  StagedPiece PieceIn(uint32_t staging, uint64_t payload_bytes) const;
  // The same as it lies on the drive: its page, then its planes.
  std::span<std::byte> Image(uint32_t staging, uint64_t payload_bytes) const;
  uint64_t store_nonce(uint32_t directory) const { return stores_[directory].manifest().store; }
  const TierDirectory& directory(uint32_t index) const { return directories_[index]; }

  void Start(const TierTransfer& transfer);
  bool Progress();
  bool Next(TierDone* done);
  bool NextLate(TierLate* late);
  // Those that are late now, the lost and disowned among them.
  std::vector<TierLate> Late() const;
  uint32_t in_flight() const { return transfers_.in_flight(); }
  int64_t next_retry_ns() const { return transfers_.next_retry_ns(); }
  int event_fd() const { return queue_->event_fd(); }
  void ClearEvent() { queue_->ClearEvent(); }

  const nvme::SlotStore& store(uint32_t directory) const { return stores_[directory]; }
  std::string engine() const { return queue_->Name(); }
  uint64_t capacity_bytes() const;
  uint64_t used_bytes() const;
  const nvme::TransferQueue& transfers() const { return transfers_; }
  const std::vector<TierDirectory>& directories() const { return directories_; }

 private:
  Adopted AdoptRanges(uint64_t name, std::span<const uint64_t> bytes,
                      std::vector<uint64_t>* offsets) const;
  void EndLate(uint64_t tag, bool answered);
  void TakeBack(uint32_t staging);
  bool MayStillWrite(uint64_t nonce, uint32_t directory) const;

  nvme::IoQueue* const queue_;
  const Clock* const clock_;
  std::vector<TierDirectory> directories_;
  nvme::TransferQueue transfers_;
  std::vector<nvme::SlotStore> stores_;
  std::span<std::byte> staging_;
  std::vector<uint32_t> free_;
  struct Slot {
    uint32_t directory = 0;  // that it was taken for
    TierTransfer transfer;
    bool disowned = false;
    bool removed = false;  // its job has gone, but for the range that it may still write to
  };
  std::vector<Slot> slots_;      // by staging slot
  std::vector<uint32_t> taken_;  // staging slots, by directory
  uint32_t taken_max_ = 0;
  std::vector<std::optional<TierLate>> late_;  // by tag: staging slots, then directories
};

}  // namespace tidepool::memserver
