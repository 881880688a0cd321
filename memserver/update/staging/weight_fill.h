// WeightFill: 16-bit weights of one job on their way from NVMe into its window (weight_window.h),
// piece by piece through staging.
//
// One thread (the serve loop) owns it. It reads only the beginning of a piece, which has the master
// and its checksum; a worker checks it and makes the 16-bit weights in the slot. Nothing is written
// to a drive.
// Invariants:
//  1. what is read is the slot of the chunk's present epoch when the fill began. That slot is
//     overwritten an epoch later at the earliest; a fill that has fallen so far behind is dropped,
//     and the chunk is filled again when it is asked for;
//  2. a piece is used only when its checksum and its name fit; else it is read again (kReadsMax
//     times), then the job fails by name;
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
  // In staging, of one job.
  static constexpr uint32_t kStagedPiecesMax = StateTier::kStagingSlots / 3;

  // `tier` may be null where the job has no window.
  WeightFill(JobStates* states, JobId job, StateTier* tier);

  // The chunk's weights come into the slot that it was given. Chunks are filled in the order of
  // these calls.
  void Begin(uint32_t slot);
  // Begins to read the next piece; returns the bytes that will be read, 0 when there is none or no
  // staging for it.
  uint64_t BeginNext();
  bool wants_to_move() const { return !over_ && !queue_.empty(); }
  bool lacks_staging() const { return wants_to_move() && staged_.count() < kStagedPiecesMax; }
  uint32_t pieces_in_staging() const { return staged_.count(); }
  void EndTransfer(const TierDone& done);
  // The answer is waited for no more: the job fails.
  void GiveUp(const TierLate& late);
  bool NextWork(Work* work);
  // True when a chunk's weights can be fetched now.
  bool EndWork(const WorkDone& done);
  // Not ok: the job must end.
  const Status& failure() const { return failure_; }
  // Something of it is in a transfer or at a worker.
  bool moving() const { return staged_.AnyMoving(); }
  // The job goes away: frees what does not move; EndWork and EndTransfer free the rest.
  void Abandon();

 private:
  struct Fill {  // of a slot
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
  FixedRing<uint32_t> queue_;                         // slots of the window with pieces to begin
  OwnedPieces staged_;
  std::vector<uint32_t> slots_;  // of the window, by staging slot, of `staged_`
  bool over_ = false;
  Status failure_;
};

}  // namespace tidepool::memserver
