// StateTier: the NVMe directories of the daemon: their ranges, the memory of the staging slots, and
// the transfers between the two.
//
// One thread (the serve loop), after the constructor. No call blocks or, on the data path,
// allocates. Staging memory is private: a late read of a server that has died never lands in memory
// that another one uses. Whose piece lies in which slot is in staging(). Next returns the end of
// every transfer whose piece still has an owner, also of a failed one. NextLate reports a transfer
// whose answer does not come; when its owner frees the piece, the slot and the range of the job are
// kept until the answer comes.
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

// Names the ranges of a job's states that were on the host before; names of jobs are odd.
inline uint64_t DemotedKey(uint64_t job_nonce) {
  return job_nonce ^ 1;
}

// A directory as it is given to the tier.
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

// A transfer whose answer does not come: of a piece, or of the directory's own tables.
struct TierLate {
  StagedPiece piece;  // as it is in the staging table; owned by nobody: of the tables, or abandoned
  uint32_t staging = 0;  // its slot
  uint32_t directory = 0;
  uint64_t offset = 0;  // of the missing block
  int64_t since_ns = 0, waited_ns = 0;
  bool of_tables = false;
  bool lost = false;  // the second report: it took longer than anybody waits

  // Else it is a read.
  bool is_write() const { return of_tables || piece.transfer.kind == nvme::IoKind::kWrite; }
};

// How the drives are asked, and how long their answers are waited for.
struct TierOptions {
  uint32_t block_bytes = kMiB;           // per read or write
  int64_t late_ns = 30 * kNsPerSecond;   // a slower answer is reported
  int64_t lost_ns = 300 * kNsPerSecond;  // nobody waits for a slower one
};

class StateTier {
 public:
  static constexpr uint32_t kStagingSlots = StagingTable::kSlots;
  // Bytes of one piece with its header, and so of one staging slot.
  static constexpr uint64_t kPieceBytesMax =
      nvme::kPieceHeaderBytes + shm::kSpilledPlanesMax * shm::kPieceElements * sizeof(float);
  static uint64_t MemoryBytes(size_t directories);

  // `queue` has three files for each directory d: its data file at 3 d, then its manifests.
  // `memory`: MemoryBytes of whole pages.
  StateTier(nvme::IoQueue* queue, const Clock* clock, std::vector<TierDirectory> directories,
            std::span<std::byte> memory, const TierOptions& options = {});

  // Largest range that a job can get, by directory; 0 where it takes no changes any more.
  std::vector<uint64_t> LargestFree() const;
  // By directory, with or without jobs in it; 0 where it takes no more.
  std::vector<uint64_t> Capacities() const;
  // Reserves ranges for the spilled chunks of a job that is not laid out; false, and nothing taken,
  // when there is no gap.
  bool Reserve(uint64_t nonce, JobStates* states);
  // The same for states that are to leave the host: `bytes` by directory, under a name of their own
  // (DemotedKey). Fills in `offsets`, by directory. False also while ranges of that name are kept
  // for a write that has not been answered.
  bool ReserveRanges(uint64_t key, std::span<const uint64_t> bytes, std::vector<uint64_t>* offsets);
  bool HasRanges(uint64_t key) const;
  // True when the directory knows the job: something was placed there at its admission or moved
  // there later.
  bool HasRangeIn(uint32_t directory, uint64_t nonce) const;
  // Flushes all that was written to the ranges of `key`, and their manifests, to the drives;
  // IsDurable is true once that is done.
  void Commit(uint64_t key, uint64_t epoch);
  // The ranges of a job found in kept memory. kOtherOrder: the directory that knows it has another
  // number; kUnknown: the one that should does not know it.
  enum class Adopted { kYes, kOtherOrder, kUnknown };
  Adopted Adopt(uint64_t nonce, JobStates* states);
  // Removes its ranges; those that abandoned pieces may still be written to go with the last of
  // these.
  void Remove(uint64_t nonce);
  // Removes the jobs of a server before this one that nobody has adopted.
  void RemoveAllBut(const std::vector<uint64_t>& nonces);
  // True when the ranges of the job have reached the manifests of its directories for good.
  bool IsDurable(const JobStates& states) const { return IsDurable(states.nvme_bytes()); }
  bool IsDurable(std::span<const uint64_t> bytes) const;  // in directories where not 0
  // A directory that the job uses and whose flush has failed; null where there is none.
  const TierDirectory* PoisonedOf(const JobStates& states) const {
    return PoisonedOf(states.nvme_bytes());
  }
  const TierDirectory* PoisonedOf(std::span<const uint64_t> bytes) const;

  // Who has which slot of the staging area.
  StagingTable& staging() { return table_; }
  const StagingTable& staging() const { return table_; }
  uint32_t staging_free() const { return static_cast<uint32_t>(table_.free_slots().size()); }
  // The bytes in a slot; their names are left to the owner.
  PieceBuffer PieceIn(uint32_t staging, uint64_t payload_bytes) const;
  // The slot's memory as it lies on the drive: its page, then its planes.
  std::span<std::byte> Image(uint32_t staging, uint64_t payload_bytes) const;
  uint64_t store_nonce(uint32_t directory) const { return stores_[directory].manifest().store; }
  const TierDirectory& directory(uint32_t index) const { return directories_[index]; }

  // Begins to read or write the piece in the slot.
  void Start(uint32_t staging, const PieceTransfer& transfer);
  // Moves all transfers on; true when something was done.
  bool Progress();
  // A transfer that has ended; false when there is none.
  bool Next(TierDone* done);
  // A transfer that has become late, or lost; false when there is none.
  bool NextLate(TierLate* late);
  // The transfers that are late now, the lost and abandoned among them.
  std::vector<TierLate> Late() const;
  uint32_t in_flight() const { return transfers_.in_flight(); }
  int64_t next_retry_ns() const { return transfers_.next_retry_ns(); }
  int event_fd() const { return queue_->event_fd(); }
  void ClearEvent() { queue_->ClearEvent(); }

  // For the snapshot: the ranges of a directory, how the drives are asked, and bytes of all.
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
