// Demotion: moves the states of one job without ranks from the host to NVMe, piece by piece, to
// make room for others.
//
// One thread (the serve loop) owns it. It moves bytes; the new location counts only once its owner
// commits (JobStates::MoveOut):
//   host planes -> staging (a worker seals them)  all pieces of the job, kStagedPiecesMax at a time
//   -> written
//   -> data files and manifests flushed           ready(): the owner commits, and the pool has the
//                                                 planes back
// Invariants: until then the host's planes are the states, and nobody reads what was written; a
// chunk has a reader while a worker reads its planes, so no update begins; an early end (a drive
// that fails, a rank that comes back) leaves the job as it was; its staging and its ranges are
// freed when none of its transfers can land any more.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "memserver/traffic/state_tier.h"
#include "memserver/update/work.h"

namespace tidepool::memserver {

class Demotion {
 public:
  // In staging at once: few, so that training jobs find slots there.
  static constexpr uint32_t kStagedPiecesMax = 8;

  // What to move, and where to: all of the job's chunks_on_host(), at its epoch. The ranges are
  // reserved.
  struct Order {
    JobId job = 0;
    MovePlan plan;
    std::vector<uint64_t> offsets;  // of the ranges, by directory
  };
  // Begins a demotion. Requires !active() and a job at rest.
  void Begin(Order order, const JobStates& states, int64_t now_ns);
  bool active() const { return state_ != State::kIdle; }
  // The job being demoted; 0: none.
  JobId job() const { return active() ? order_.job : 0; }
  const Order& order() const { return order_; }

  // Advances the demotion; `states` are those of job(). True if something was done.
  bool Progress(StateTier* tier, const JobStates& states);
  bool NextWork(const StateTier& tier, JobStates* states, Work* work);
  void EndWork(const WorkDone& done, StateTier* tier, JobStates* states);
  void EndTransfer(const TierDone& done, StateTier* tier);
  // A write is late: the demotion fails; a lost write is no longer waited for.
  void TakeLate(const TierLate& late, StateTier* tier);
  // Ends it without having moved anything. Idempotent; the first reason is kept.
  void Cancel(const Status& why);

  // True when all states are durable on NVMe.
  bool ready() const { return state_ == State::kReady || state_ == State::kCommitted; }
  // The owner commits it, so it can no longer be cancelled. Requires ready().
  void NoteCommitted() { state_ = State::kCommitted; }
  // True when it was cancelled and none of its transfers is in progress.
  bool failed() const { return state_ == State::kEnding && staged_.count() == 0; }
  const Status& why() const { return why_; }
  // Resets it. Requires ready() or failed().
  void End() { state_ = State::kIdle; }
  // True while a worker or the tier holds a piece of it.
  bool moving() const { return staged_.AnyMoving(); }
  uint32_t pieces_in_staging() const { return staged_.count(); }
  // Number of the chunk's pieces that a worker is reading.
  uint32_t ReadersOf(ChunkId chunk) const;
  uint64_t pieces() const { return pieces_; }
  uint64_t pieces_written() const { return written_; }
  int64_t began_ns() const { return began_ns_; }

 private:
  enum class State : uint8_t { kIdle, kMoving, kFlushing, kReady, kCommitted, kEnding };
  void PlaceNext(const JobStates& states);
  bool TakePieces(StateTier* tier, const JobStates& states);
  PieceBuffer BufferOf(uint32_t staging, const StateTier& tier, const JobStates& states) const;

  State state_ = State::kIdle;
  Order order_;
  Status why_;
  // Places of slot 0 of the chunks up to next_chunk_, in their data files; and where the next chunk
  // of each directory begins.
  std::vector<uint64_t> places_, ends_;
  OwnedPieces staged_;
  ChunkId next_chunk_ = 0;
  uint32_t next_piece_ = 0;
  uint64_t pieces_ = 0, written_ = 0;
  int64_t began_ns_ = 0;
};

}  // namespace tidepool::memserver
