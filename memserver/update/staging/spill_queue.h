// SpillQueue: moves the spilled chunks of one job through staging, piece by piece: first stored
// when their weights have arrived, then updated with each sealed step.
//
// One thread (the serve loop) owns it. While a worker updates piece n, the tier reads later pieces
// and writes earlier ones.
//   store     weights where they landed -> staging (a worker) -> written, noted in the piece's
//             progress word
//   unstage   (16-bit jobs with the plane in the pool, once the whole chunk is stored) read ->
//             16-bit plane (a worker): the plane may lie where the weights landed
//   update    read, epoch e -> updated in staging (a worker) -> written to the other slot,
//             epoch e + 1
//   ahead     the first pieces of the next update, read before its step is sealed: the update takes
//             them over, or they are given back
// Invariants:
//  1. the slot of epoch e is not written while the chunk may still have to return to that epoch: a
//     chunk is finished, and then published, only when every piece of epoch e + 1 was confirmed as
//     written;
//  2. a piece is used only if its checksums and its name fit; else it is read again (kReadsMax
//     times), then the job fails with an error that names it;
//  3. after a failure nothing new begins; pieces in flight end and free their staging;
//  4. a piece that the drive does not take is settled by its owner: it is kept in the pool from
//     then on (fallback_slots.h), or put off: the slot of epoch e and the gradient still exist, so
//     it is updated again later. No piece's only copy is in staging;
//  5. pieces read ahead are only read: no worker gets them, their failure is not a failure, and
//     anyone who lacks staging may have them given back.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "memserver/traffic/fixed_ring.h"
#include "memserver/traffic/state_tier.h"
#include "memserver/update/staging/put_off_pieces.h"
#include "memserver/update/work.h"

namespace tidepool::memserver {

class SpillQueue {
 public:
  static constexpr uint32_t kReadsMax = 3;
  // Pieces in staging of one job; and of all jobs together while several want to move some.
  static constexpr uint32_t kStagedPiecesMax = StateTier::kStagingSlots / 3 * 2;

  // `tier` may be null if the job spills nothing.
  SpillQueue(JobStates* states, JobId job, StateTier* tier);

  // Stores a chunk whose weights have all arrived; also after a restart, wherever the former server
  // stopped.
  void Store(ChunkId chunk);
  // Queues the chunk's update from `epoch`; chunks are updated in the order of these calls.
  void Update(ChunkId chunk, uint64_t epoch);

  // Reads a piece of the next update, which will be from `epoch`; false if there is no staging to
  // spare. Requires that every chunk is at that epoch. Pieces must come in the order of that
  // update.
  bool ReadAhead(ChunkId chunk, uint32_t piece, uint64_t epoch);
  // Drops pieces read ahead and not taken over, of one chunk or of all; true if there were some.
  bool GiveBackAhead(std::optional<ChunkId> chunk = std::nullopt);

  // Begins to move due put-off pieces while there is staging; true if it moved some.
  bool BeginPutOff(int64_t now_ns);
  // Begins to move the next piece. Returns the bytes that will be read and written for it (1 for a
  // piece that is staged already), or 0 if there is none or no staging for it.
  uint64_t BeginNext();
  bool wants_to_move() const { return !over_ && !tasks_.empty(); }
  // True if something waits for staging while one job alone may have more.
  bool lacks_staging() const {
    return !over_ && staged_.count() < kStagedPiecesMax && (!tasks_.empty() || !put_off_.empty());
  }
  uint32_t pieces_in_staging() const { return staged_.count(); }
  // The oldest staged piece that is ready for its update; false if there is none, or its chunk may
  // not begin now.
  struct ReadyPiece {
    ChunkId chunk = 0;
    uint32_t piece = 0;
    PieceBuffer staged;
  };
  bool NextUpdate(bool may_begin, ReadyPiece* ready);
  // The next worker task of a store.
  bool NextLoadWork(Work* work);
  void EndWork(const WorkDone& done);
  void EndTransfer(const TierDone& done);
  // Stops waiting for a transfer of the job: a write becomes unwritten, a read fails the job.
  void GiveUp(const TierLate& late);
  // A piece that could not be written; false if there is none. Its owner must settle it by one of
  // the three calls below.
  using Unwritten = UnwrittenPiece;
  bool NextUnwritten(Unwritten* unwritten) const;
  // Keeps it in the pool, as if it had been written; false if the pool has no run for it.
  bool KeepInPool(const Unwritten& unwritten);
  // Makes it again at `due_ns`. Requires that it is not out.
  void PutOff(const Unwritten& unwritten, int64_t due_ns);
  // It is out, and the pool has no room: fails the job.
  void FailUnwritten(const Unwritten& unwritten);
  using PutOffPiece = memserver::PutOffPiece;
  std::span<const PutOffPiece> put_off() const { return put_off_.all(); }
  // When the next of them is due; INT64_MAX: none.
  int64_t next_due_ns() const { return put_off_.next_due_ns(); }
  // A chunk that was wholly stored or updated; false if there is none.
  struct Finished {
    ChunkId chunk = 0;
    bool updated = false;  // else stored, and its weights are loaded
  };
  bool TakeFinished(Finished* finished);

  // Not ok: the job must end.
  const Status& failure() const { return failure_; }
  // True while a transfer or a worker holds a piece of the job.
  bool moving() const { return staged_.AnyMoving(); }
  // The job is removed: frees pieces at rest; EndWork and EndTransfer free the rest.
  void Abandon();

 private:
  enum class Kind : uint8_t { kStore, kUnstage, kUpdate };
  struct Task {
    Kind kind = Kind::kStore;
    ChunkId chunk = 0;
    uint64_t epoch = 0;  // to be read; for kStore, to be written
  };
  // Given back: it is freed as soon as its read ends.
  enum class Ahead : uint8_t { kNo, kYes, kGivenBack };
  // What the queue knows about a staged piece besides the staging table.
  struct Move {
    Task task;
    Ahead ahead = Ahead::kNo;
    uint32_t times_put_off = 0;
    int error = 0;           // of an unwritten one
    uint64_t failed_at = 0;  // likewise
  };
  uint64_t BeginPiece(const Move& move, uint32_t piece);
  void BeginTask(const Task& task);
  void TakeOverAhead(const Task& task);
  void PassPiece();
  uint32_t OldestReady(bool updates) const;
  PieceBuffer BufferOf(uint32_t staging) const;
  nvme::PieceName NameOf(uint32_t staging, uint64_t epoch) const;
  uint64_t PayloadOf(uint32_t staging) const;
  void Transfer(uint32_t staging, nvme::IoKind kind, uint64_t epoch);
  void EndWrite(uint32_t staging);
  void FreePiece(uint32_t staging);
  void EndPiece(const Task& task);
  void FailRead(const TierDone& done);
  void Fail(uint32_t staging, Status why);
  void FailStalled(uint32_t staging, const char* what);
  std::string Where(uint32_t staging) const;

  JobStates* const states_;
  const JobId job_;
  StateTier* const tier_;
  FixedRing<Task> tasks_;
  FixedRing<Finished> finished_;
  uint32_t next_piece_ = 0;  // of the front task
  OwnedPieces staged_;
  std::vector<Move> moves_;    // by slot of `staged_`
  uint32_t ahead_ = 0;         // pieces with Ahead::kYes
  uint64_t unpaid_bytes_ = 0;  // of pieces taken over; BeginNext adds them to its own
  PutOffPieces put_off_;
  bool over_ = false;
  Status failure_;
};

}  // namespace tidepool::memserver
