// Demotion: the states of one job without ranks on their way from the host to NVMe, piece by piece,
// so that others have their room.
//
// One thread (the serve loop) owns it. It moves bytes; what is believed changes only when its owner
// commits (JobStates::MoveOut):
//   host planes -> staging (a worker seals them)  all pieces of the job, kStagedPiecesMax at a time
//   -> written
//   -> data files and manifests flushed           ready(): the owner commits, and the pool has the
//                                                 planes back
// Invariants: until then the host's planes are the states, and nobody reads what was written; a
// chunk has a reader while a worker reads its planes, so no update begins; whatever ends it early
// (a drive that fails, a rank that comes back) leaves the job as it was; its staging and its ranges
// are given back when no transfer of it can land any more.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "memserver/traffic/state_tier.h"
#include "memserver/update/work.h"

namespace tidepool::memserver {

class Demotion {
 public:
  // In staging: few, so that jobs that train find places there.
  static constexpr uint32_t kStagedPiecesMax = 8;

  // What is moved, and where to: all of the job's chunks_on_host(), at its epoch. The ranges are
  // reserved.
  struct Order {
    JobId job = 0;
    MovePlan plan;
    std::vector<uint64_t> offsets;  // of the ranges, by directory
  };
  // Requires !active() and a job at rest.
  void Begin(Order order, const JobStates& states, int64_t now_ns);
  bool active() const { return state_ != State::kIdle; }
  // The job that it moves; 0: none.
  JobId job() const { return active() ? order_.job : 0; }
  const Order& order() const { return order_; }

  // Moves on; `states` of job(). True when something was done.
  bool Progress(StateTier* tier, const JobStates& states);
  bool NextWork(const StateTier& tier, JobStates* states, Work* work);
  void EndWork(const WorkDone& done, StateTier* tier, JobStates* states);
  void EndTransfer(const TierDone& done, StateTier* tier);
  // A write of it is not answered: it fails; a lost one is waited for no more.
  void TakeLate(const TierLate& late, StateTier* tier);
  // It ends without having moved anything: harmless when repeated. The first reason is kept.
  void Cancel(const Status& why);

  // All of it lies on NVMe for good.
  bool ready() const { return state_ == State::kReady || state_ == State::kCommitted; }
  // The owner believes it from here on: it cannot be cancelled any more. Requires ready().
  void NoteCommitted() { state_ = State::kCommitted; }
  // It was cancelled, and nothing of it is under way any more.
  bool failed() const { return state_ == State::kEnding && staged_.count() == 0; }
  const Status& why() const { return why_; }
  // With ready() or failed(): there is none any more.
  void End() { state_ = State::kIdle; }
  // A worker or the tier has something of it.
  bool moving() const { return staged_.AnyMoving(); }
  uint32_t pieces_in_staging() const { return staged_.count(); }
  // Pieces of the chunk that a worker reads.
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
  // Slot 0 of the chunks up to next_chunk_, in their data files; and where the next of each
  // directory begins.
  std::vector<uint64_t> places_, ends_;
  OwnedPieces staged_;
  ChunkId next_chunk_ = 0;
  uint32_t next_piece_ = 0;
  uint64_t pieces_ = 0, written_ = 0;
  int64_t began_ns_ = 0;
};

}  // namespace tidepool::memserver
