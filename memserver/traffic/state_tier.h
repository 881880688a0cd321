// StateTier: the NVMe directories of the daemon: their ranges, the memory of the staging slots, and
// the transfers between them.
//
// One thread (the serve loop), after the constructor. No call blocks or, on the data path,
// allocates. Staging memory is private: a late read of a dead server never lands in memory that
// another one uses. staging() says which piece lies in which slot. Next returns the end of every
// transfer whose piece still has an owner, including failed ones. NextLate reports a transfer whose
// answer does not come; when its owner frees the piece, the slot and the job's range are kept until
// the answer comes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "memserver/residency/job_states.h"
#include "memserver/traffic/staging/piece_buffer.h"
#include "memserver/traffic/staging/staging_table.h"
#include "nvme/slot_store.h"
#include "shm/spec/state_footprint.h"

namespace tidepool::memserver {

// The key of the ranges of a job's demoted states; keys of jobs are odd, so this one is even.
inline uint64_t DemotedKey(uint64_t job_nonce) {
  return job_nonce ^ 1;
}

// A directory as given to the tier.
struct TierDirectory {
  std::string path;
  nvme::Manifest manifest;
  int data_fd = -1;  // for saves, which read on their own thread
};

// The end of a transfer, for the owner of its piece.
struct TierDone {
  nvme::IoKind kind = nvme::IoKind::kRead;
  uint32_t staging = 0;  // slot
  PieceOwner owner = PieceOwner::kNobody;
  JobId job = 0;
  int error = 0;  // 0, or an errno
  uint64_t offset = 0;
  uint32_t directory = 0;
};

// A transfer that has not been answered: of a piece, or of the directory's own tables.
struct TierLate {
  StagedPiece piece;     // as in the staging table; without owner: of the tables, or abandoned
  uint32_t staging = 0;  // its slot
  uint32_t directory = 0;
  uint64_t offset = 0;  // of the missing block
  int64_t since_ns = 0, waited_ns = 0;
  bool of_tables = false;
  bool lost = false;  // the second report: beyond the time that anyone waits

  // True for a write, else it is a read.
  bool is_write() const { return of_tables || piece.transfer.kind == nvme::IoKind::kWrite; }
};

// I/O parameters and timeouts of the drives.
struct TierOptions {
  uint32_t block_bytes = kMiB;           // per read or write
  int64_t late_ns = 30 * kNsPerSecond;   // a slower answer is reported
  int64_t lost_ns = 300 * kNsPerSecond;  // a slower answer is not waited for
};

class StateTier {
 public:
  static constexpr uint32_t kStagingSlots = StagingTable::kSlots;
  // Bytes of one piece with its header, which is the size of a staging slot.
  static constexpr uint64_t kPieceBytesMax =
      nvme::kPieceHeaderBytes + shm::kSpilledPlanesMax * shm::kPieceElements * sizeof(float);
  static uint64_t MemoryBytes(size_t directories);

  // `queue` has three files for each directory d: its data file at 3 d, then its manifests.
  // `memory`: MemoryBytes of whole pages.
  StateTier(nvme::IoQueue* queue, const Clock* clock, std::vector<TierDirectory> directories,
            std::span<std::byte> memory, const TierOptions& options = {});

  // Largest range that a job can get, by directory; 0 if it accepts no more changes.
  std::vector<uint64_t> LargestFree() const;
  // Total size, by directory; 0 if it accepts no more changes.
  std::vector<uint64_t> Capacities() const;
  // Reserves ranges for the spilled chunks of a job that is not laid out; false, and nothing taken,
  // if there is no gap.
  bool Reserve(uint64_t nonce, JobStates* states);
  // The same for states that are to leave the host: `bytes` by directory, under a key of their own
  // (DemotedKey). Fills in `offsets`, by directory. False also while ranges of that key are kept
  // for an unanswered write.
  bool ReserveRanges(uint64_t key, std::span<const uint64_t> bytes, std::vector<uint64_t>* offsets);
  bool HasRanges(uint64_t key) const;
  // True if the directory knows the job: states were placed there at its admission or moved there
  // later.
  bool HasRangeIn(uint32_t directory, uint64_t nonce) const;
  // Flushes everything written to the ranges of `key`, and their manifests, to the drives;
  // IsDurable is true once that is done.
  void Commit(uint64_t key, uint64_t epoch);
  // Adopts the ranges of a job found in kept memory. kOtherOrder: the directory that knows it has
  // another number; kUnknown: the directory that should know it does not.
  enum class Adopted { kYes, kOtherOrder, kUnknown };
  Adopted Adopt(uint64_t nonce, JobStates* states);
  // Removes the job's ranges. A range that abandoned pieces may still be written to is removed
  // after the last of them.
  void Remove(uint64_t nonce);
  // Removes the jobs of a former server that were not adopted.
  void RemoveAllBut(const std::vector<uint64_t>& nonces);
  // True if the ranges of the job are durable in the manifests of its directories.
  bool IsDurable(const JobStates& states) const { return IsDurable(states.nvme_bytes()); }
  bool IsDurable(std::span<const uint64_t> bytes) const;  // in directories whose entry is not 0
  // A directory of the job whose flush has failed; null if there is none.
  const TierDirectory* PoisonedOf(const JobStates& states) const {
    return PoisonedOf(states.nvme_bytes());
  }
  const TierDirectory* PoisonedOf(std::span<const uint64_t> bytes) const;

  // The owners of the staging slots.
  StagingTable& staging() { return table_; }
  const StagingTable& staging() const { return table_; }
  uint32_t staging_free() const { return static_cast<uint32_t>(table_.free_slots().size()); }
  // The bytes in a slot; the owner sets the names.
  PieceBuffer PieceIn(uint32_t staging, uint64_t payload_bytes) const;
  // The slot's memory in the layout of the drive: its header page, then its planes.
  std::span<std::byte> Image(uint32_t staging, uint64_t payload_bytes) const;
  uint64_t store_nonce(uint32_t directory) const { return stores_[directory].manifest().store; }
  const TierDirectory& directory(uint32_t index) const { return directories_[index]; }

  // Begins to read or write the piece in the slot.
  void Start(uint32_t staging, const PieceTransfer& transfer);
  // Advances all transfers; true if something was done.
  bool Progress();
  // A transfer that has ended; false if there is none.
  bool Next(TierDone* done);
  // A transfer that has become late, or lost; false if there is none.
  bool NextLate(TierLate* late);
  // The transfers that are late now, including lost and abandoned ones.
  std::vector<TierLate> Late() const;
  uint32_t in_flight() const { return transfers_.in_flight(); }
  int64_t next_retry_ns() const { return transfers_.next_retry_ns(); }
  int event_fd() const { return queue_->event_fd(); }
  void ClearEvent() { queue_->ClearEvent(); }

  // For the snapshot: the ranges of a directory, the I/O parameters, and total bytes.
  const nvme::SlotStore& store(uint32_t directory) const { return stores_[directory]; }
  std::string engine() const { return queue_->Name(); }
  uint64_t capacity_bytes() const;
  uint64_t used_bytes() const;
  const nvme::TransferQueue& transfers() const { return transfers_; }
  const std::vector<TierDirectory>& directories() const { return directories_; }

 private:
  Adopted AdoptRanges(uint64_t name, std::span<const uint64_t> bytes,
                      std::vector<uint64_t>* offsets) const;
  TierLate LateIn(uint64_t tag, int64_t now_ns) const;
  void EndLate(uint64_t tag, bool answered);
  bool EndPiece(uint32_t staging);

  nvme::IoQueue* const queue_;
  const Clock* const clock_;
  std::vector<TierDirectory> directories_;
  nvme::TransferQueue transfers_;
  std::vector<nvme::SlotStore> stores_;
  std::span<std::byte> staging_;
  StagingTable table_;
  std::vector<Lateness> tables_late_;  // of each directory's own tables
};

}  // namespace tidepool::memserver
