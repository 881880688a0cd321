// StagingTable: which piece of states lies in each slot of the staging area, who owns it, and what
// happens to it. OwnedPieces: the pieces of one owner among them.
//
// One thread (the serve loop). A table only: StateTier owns it and moves the bytes. No call
// allocates after the constructor.
// A slot goes through these states:
//   free -> ready             Take: the slot has an owner from here on
//   ready -> reading -> ready; ready -> at worker -> reading (again) or writing
//   writing -> unwritten      the drive did not take the piece: its owner decides what it becomes
//   any -> free               Free, by the owner, while no transfer is out
//   any -> abandoned -> free  Free, while a transfer is out: nobody hears its answer, and the slot
//                             is free when that has come
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

// The policy that has the piece. SpillQueue and WeightFill exist once for each job.
enum class PieceOwner : uint8_t { kNobody, kSpillQueue, kWeightFill, kDemotion, kScrub };

// What happens to the piece in a slot.
enum class StagedState : uint8_t {
  kFree,       // no piece
  kReady,      // in no transfer and at no worker
  kReading,    // in a transfer
  kAtWorker,   // a worker reads or writes it
  kWriting,    // in a transfer
  kUnwritten,  // not on the drive: an error, or no answer, and then still in its transfer
  kAbandoned,  // in a transfer, of no owner any more
};

// What a drive is asked to do with a slot's memory.
struct PieceTransfer {
  nvme::IoKind kind = nvme::IoKind::kRead;
  uint64_t offset = 0;         // of the piece's header in the data file
  uint64_t payload_bytes = 0;  // behind the header
  uint64_t range = 0;          // the key of the job's range that it lies in (StateTier)
};

// A transfer that takes longer than it should.
struct Lateness {
  bool told = false;
  bool lost = false;    // longer than the limit: it is given up
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
  uint32_t reads = 0;      // that its owner began
  uint64_t number = 0;     // in the order in which pieces came to staging
  PieceTransfer transfer;  // the last one
  bool in_transfer = false;
  Lateness late;               // of that transfer
  bool range_removed = false;  // its job is gone; the range stays while it may be written
};

class StagingTable {
 public:
  // Pieces in staging: enough to read, update and write at the same time at the speed of several
  // drives, which need some 64 MiB in flight; 144 MiB.
  static constexpr uint32_t kSlots = 48;
  static constexpr uint32_t kNone = kSlots;  // no slot

  explicit StagingTable(size_t directories);

  // Room for a transfer from or to this directory; one that does not answer leaves some to the
  // others.
  bool HasRoom(uint32_t directory) const {
    return !free_.empty() && taken_[directory] < taken_max_;
  }
  // For what is not due yet: leaves others half of what the directory may have, and a third of all.
  bool HasRoomToSpare(uint32_t directory) const {
    return free_.size() > kSlots / 3 && taken_[directory] < taken_max_ / 2;
  }
  // A slot for a piece, which is kReady there; none without HasRoom.
  struct Wanted {
    PieceOwner owner = PieceOwner::kNobody;
    JobId job = 0;
    uint32_t directory = 0;
    ChunkId chunk = 0;
    uint32_t piece = 0;
  };
  std::optional<uint32_t> Take(const Wanted& wanted);
  // Its owner has done with the piece: the slot is free now, or when the answer to its transfer has
  // come.
  void Free(uint32_t slot);

  // A drive gets the slot's memory. Requires that it is in no transfer.
  void BeginTransfer(uint32_t slot, const PieceTransfer& transfer);
  // The answer has come. False when nobody waited for it: then the slot is free.
  bool EndTransfer(uint32_t slot);
  // The answer does not come.
  void NoteLate(uint32_t slot, const Lateness& late) { pieces_[slot].late = late; }

  // True while a piece that was abandoned may be written to this range.
  bool MayStillWrite(uint64_t range, uint32_t directory) const;
  // The range goes away when none of those may be written to it any more.
  void NoteRemoved(uint64_t range);

  StagedPiece& at(uint32_t slot) { return pieces_[slot]; }
  const StagedPiece& at(uint32_t slot) const { return pieces_[slot]; }
  const std::vector<StagedPiece>& all() const { return pieces_; }  // by slot
  // The slots that anybody may take; how many are taken for a directory.
  const std::vector<uint32_t>& free_slots() const { return free_; }
  uint32_t taken(uint32_t directory) const { return taken_[directory]; }

 private:
  void PutBack(uint32_t slot);

  std::vector<StagedPiece> pieces_;  // by slot
  std::vector<uint32_t> free_;
  std::vector<uint32_t> taken_;  // slots, by directory
  uint32_t taken_max_ = 0;
  uint64_t numbers_ = 0;
};

// The pieces of one owner, and of one job of it. A view with a count of its own: an owner keeps one
// and takes and frees through it alone.
class OwnedPieces {
 public:
  // Has none, and takes none.
  OwnedPieces() = default;
  // `table` may be null where none is ever taken.
  OwnedPieces(StagingTable* table, PieceOwner owner, JobId job)
      : table_(table), owner_(owner), job_(job) {}

  uint32_t count() const { return count_; }
  std::optional<uint32_t> Take(uint32_t directory, ChunkId chunk, uint32_t piece);
  void Free(uint32_t slot);
  // Requires that it has the slot.
  StagedPiece& at(uint32_t slot) const {
    TP_CHECK(Has(slot), "a staged piece is used by its owner");
    return table_->at(slot);
  }
  bool Has(uint32_t slot) const {
    const StagedPiece& piece = table_->at(slot);
    return piece.owner == owner_ && piece.job == job_;
  }

  // The slot of its first piece, in the order of slots, for which `matches(slot, piece)` is true;
  // kNone: there is none.
  template <typename Matches>
  uint32_t Find(const Matches& matches) const {
    for (uint32_t slot = 0; count_ > 0 && slot < StagingTable::kSlots; ++slot) {
      if (Has(slot) && matches(slot, table_->at(slot))) return slot;
    }
    return StagingTable::kNone;
  }
  // The same for the piece that came first.
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
  // The first in this state.
  uint32_t FindIn(StagedState state) const {
    return Find([state](uint32_t, const StagedPiece& each) { return each.state == state; });
  }
  // The one of this name that a worker has; there must be one.
  uint32_t FindAtWorker(ChunkId chunk, uint32_t piece) const;
  // One of them is in a transfer that is waited for, or at a worker.
  bool AnyMoving() const;
  // Frees those in this state.
  void FreeAllIn(StagedState state);

 private:
  StagingTable* table_ = nullptr;
  PieceOwner owner_ = PieceOwner::kNobody;
  JobId job_ = 0;
  uint32_t count_ = 0;
};

}  // namespace tidepool::memserver
