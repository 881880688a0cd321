// WeightFill: reads 16-bit weights of one job from NVMe into its window (weight_window.h), piece by
// piece through staging.
//
// One thread (the serve loop) owns it. It reads only the front of a piece, which has the master and
// its checksum; a worker checks it and makes the 16-bit weights in the slot. Nothing is written to
// a drive. Invariants:
//  1. it reads the slot that held the chunk's present epoch when the fill began. That slot is
//     overwritten an epoch later at the earliest; a fill that has fallen so far behind is dropped,
//     and the chunk is filled again when it is asked for;
//  2. a piece is used only if its checksum and its name fit; else it is read again (kReadsMax
//     times), then the job fails with an error that names it;
//  3. a fill waits for staging, the drive and a worker, never for a slot: it has its own.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "memserver/traffic/fixed_ring.h"
#include "memserver/traffic/state_tier.h"
#include "memserver/update/work.h"

namespace tidepool::memserver {

class WeightFill {
 public:
  static constexpr uint32_t kReadsMax = 3;
  // Pieces in staging of one job.
  static constexpr uint32_t kStagedPiecesMax = StateTier::kStagingSlots / 3;

  // `tier` may be null if the job has no window.
  WeightFill(JobStates* states, JobId job, StateTier* tier);

  // Reads the chunk's weights into the slot that it was given. Chunks are filled in the order of
  // these calls.
  void Begin(uint32_t slot);
  // Begins to read the next piece. Returns the bytes that will be read, or 0 if there is none or no
  // staging for it.
  uint64_t BeginNext();
  bool wants_to_move() const { return !over_ && !queue_.empty(); }
  bool lacks_staging() const { return wants_to_move() && staged_.count() < kStagedPiecesMax; }
  uint32_t pieces_in_staging() const { return staged_.count(); }
  void EndTransfer(const TierDone& done);
  // Stops waiting for the answer: the job fails.
  void GiveUp(const TierLate& late);
  bool NextWork(Work* work);
  // True if the chunk's weights can be fetched now.
  bool EndWork(const WorkDone& done);
  // Not ok: the job must end.
  const Status& failure() const { return failure_; }
  // True while a transfer or a worker holds a piece of it.
  bool moving() const { return staged_.AnyMoving(); }
  // The job is removed: frees pieces at rest; EndWork and EndTransfer free the rest.
  void Abandon();

 private:
  struct Fill {  // the fill of a slot
    uint64_t epoch = 0;
    uint32_t next_piece = 0, pieces_left = 0;
  };
  PieceBuffer BufferOf(uint32_t staging) const;
  void Read(uint32_t staging);
  bool IsPast(uint32_t staging) const;
  bool EndPiece(uint32_t staging);
  void Fail(uint32_t staging, Status why);
  std::string Where(uint32_t staging) const;

  JobStates* const states_;
  const JobId job_;
  StateTier* const tier_;
  std::array<Fill, 2 * shm::kWeightAreasMax> fills_;  // by slot
  FixedRing<uint32_t> queue_;                         // window slots with pieces to begin
  OwnedPieces staged_;
  std::vector<uint32_t> slots_;  // window slots, by slot of `staged_`
  bool over_ = false;
  Status failure_;
};

}  // namespace tidepool::memserver
