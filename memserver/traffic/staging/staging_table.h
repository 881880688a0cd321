// StagingTable: which piece of states lies in each slot of the staging area, its owner, and its
// state. OwnedPieces: the pieces of one owner among them.
//
// One thread (the serve loop). A table only: StateTier owns it and moves the bytes. No call
// allocates after the constructor. The states of a slot:
//   free -> ready             Take: the slot has an owner from here on
//   ready -> reading -> ready; ready -> at worker -> reading (again) or writing
//   writing -> unwritten      the drive did not take the piece: its owner decides what it becomes
//   any -> free               Free, by the owner, while no transfer is in flight
//   any -> abandoned -> free  Free, while a transfer is in flight: its answer is ignored, and
//                             frees the slot
// Invariants:
//  1. a slot that is not free has one owner, except while it is abandoned;
//  2. a slot whose memory a drive may still read or write (in_transfer) is neither free nor given
//     to another owner;
//  3. a piece is freed once.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/check.h"
#include "base/ids.h"
#include "nvme/io_queue.h"

namespace tidepool::memserver {

// The policy that owns the piece. SpillQueue and WeightFill exist once per job.
enum class PieceOwner : uint8_t { kNobody, kSpillQueue, kWeightFill, kDemotion, kScrub };

// The state of the piece in a slot.
enum class StagedState : uint8_t {
  kFree,       // no piece
  kReady,      // in no transfer and at no worker
  kReading,    // in a transfer
  kAtWorker,   // a worker reads or writes it
  kWriting,    // in a transfer
  kUnwritten,  // not on the drive: an error, or no answer, and then its transfer is still in flight
  kAbandoned,  // in a transfer, without an owner
};

// A transfer between a drive and a slot's memory.
struct PieceTransfer {
  nvme::IoKind kind = nvme::IoKind::kRead;
  uint64_t offset = 0;         // of the piece's header in the data file
  uint64_t payload_bytes = 0;  // behind the header
  uint64_t range = 0;          // key of the job's range that contains it (StateTier)
  int64_t begin_ns = 0;        // set by StateTier
};

// The state of a late transfer.
struct Lateness {
  bool told = false;
  bool lost = false;    // beyond the limit: given up
  uint64_t offset = 0;  // of the block that is missing
  int64_t since_ns = 0;
};

// The entry of a slot: the piece that lies in it, its owner, and its transfer.
struct StagedPiece {
  PieceOwner owner = PieceOwner::kNobody;
  StagedState state = StagedState::kFree;
  JobId job = 0;  // whose states they are
  ChunkId chunk = 0;
  uint32_t piece = 0;      // of the chunk
  uint32_t directory = 0;  // for which the slot was taken
  uint32_t reads = 0;      // number of reads begun by its owner
  uint64_t number = 0;     // sequence number of arrival in staging
  PieceTransfer transfer;  // the latest one
  bool in_transfer = false;
  Lateness late;               // of that transfer
  bool range_removed = false;  // its job is gone; the range stays while it may be written
};

class StagingTable {
 public:
  // Pieces in staging: enough to read, update and write in parallel at the speed of several drives,
  // which need some 64 MiB in flight; 144 MiB.
  static constexpr uint32_t kSlots = 48;
  static constexpr uint32_t kNone = kSlots;  // no slot

  explicit StagingTable(size_t directories);

  // True if there is a slot for a transfer from or to this directory. A directory that does not
  // answer leaves some to the others.
  bool HasRoom(uint32_t directory) const {
    return !free_.empty() && taken_[directory] < taken_max_;
  }
  // For pieces that are not due yet: leaves others half of its slots, and a third of all.
  bool HasRoomToSpare(uint32_t directory) const {
    return free_.size() > kSlots / 3 && taken_[directory] < taken_max_ / 2;
  }
  // Takes a slot for a piece, which is kReady there. Requires HasRoom.
  struct Wanted {
    PieceOwner owner = PieceOwner::kNobody;
    JobId job = 0;
    uint32_t directory = 0;
    ChunkId chunk = 0;
    uint32_t piece = 0;
  };
  std::optional<uint32_t> Take(const Wanted& wanted);
  // The owner releases the piece: the slot is free now, or when its transfer has been answered.
  void Free(uint32_t slot);

  // Hands the slot's memory to a drive. Requires that it is in no transfer.
  void BeginTransfer(uint32_t slot, const PieceTransfer& transfer);
  // The transfer was answered. False if it was abandoned; then the slot is free.
  bool EndTransfer(uint32_t slot);
  // Notes that the transfer is late.
  void NoteLate(uint32_t slot, const Lateness& late) { pieces_[slot].late = late; }

  // True while an abandoned piece may be written to this range.
  bool MayStillWrite(uint64_t range, uint32_t directory) const;
  // Notes that the range is removed once no abandoned piece may be written to it.
  void NoteRemoved(uint64_t range);

  StagedPiece& at(uint32_t slot) { return pieces_[slot]; }
  const StagedPiece& at(uint32_t slot) const { return pieces_[slot]; }
  const std::vector<StagedPiece>& all() const { return pieces_; }  // by slot
  // The free slots; and how many are taken for a directory.
  const std::vector<uint32_t>& free_slots() const { return free_; }
  uint32_t taken(uint32_t directory) const { return taken_[directory]; }

 private:
  void PutBack(uint32_t slot);

  std::vector<StagedPiece> pieces_;  // by slot
  std::vector<uint32_t> free_;
  std::vector<uint32_t> taken_;  // number of slots, by directory
  uint32_t taken_max_ = 0;
  uint64_t numbers_ = 0;
};

// The pieces of one owner, for one job. A view with a count of its own: an owner keeps one and
// takes and frees through it alone.
class OwnedPieces {
 public:
  // Owns none, and takes none.
  OwnedPieces() = default;
  // `table` may be null if no piece is ever taken.
  OwnedPieces(StagingTable* table, PieceOwner owner, JobId job)
      : table_(table), owner_(owner), job_(job) {}

  uint32_t count() const { return count_; }
  std::optional<uint32_t> Take(uint32_t directory, ChunkId chunk, uint32_t piece);
  void Free(uint32_t slot);
  // Requires that it owns the slot.
  StagedPiece& at(uint32_t slot) const {
    TP_CHECK(Has(slot), "a staged piece is used by its owner");
    return table_->at(slot);
  }
  bool Has(uint32_t slot) const {
    const StagedPiece& piece = table_->at(slot);
    return piece.owner == owner_ && piece.job == job_;
  }

  // The slot of its first piece, in slot order, for which `matches(slot, piece)` is true; kNone:
  // none.
  template <typename Matches>
  uint32_t Find(const Matches& matches) const {
    for (uint32_t slot = 0; count_ > 0 && slot < StagingTable::kSlots; ++slot) {
      if (Has(slot) && matches(slot, table_->at(slot))) return slot;
    }
    return StagingTable::kNone;
  }
  // The same for the piece that arrived first.
  template <typename Matches>
  uint32_t FindOldest(const Matches& matches) const {
    uint32_t oldest = StagingTable::kNone;
    Find([&](uint32_t slot, const StagedPiece& piece) {
      if (matches(slot, piece) &&
          (oldest == StagingTable::kNone || piece.number < table_->at(oldest).number))
        oldest = slot;
      return false;
    });
    return oldest;
  }
  // The first piece in this state.
  uint32_t FindIn(StagedState state) const {
    return Find([state](uint32_t, const StagedPiece& each) { return each.state == state; });
  }
  // Its piece of this name at a worker; there must be one.
  uint32_t FindAtWorker(ChunkId chunk, uint32_t piece) const;
  // True if one of them is in a transfer that is waited for, or at a worker.
  bool AnyMoving() const;
  // Frees its pieces in this state.
  void FreeAllIn(StagedState state);

 private:
  StagingTable* table_ = nullptr;
  PieceOwner owner_ = PieceOwner::kNobody;
  JobId job_ = 0;
  uint32_t count_ = 0;
};

}  // namespace tidepool::memserver
