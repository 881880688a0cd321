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
  // Pieces of one job in staging.
  static constexpr uint32_t kRidesMax = StateTier::kStagingSlots / 3;

  // `tier` may be null where the job has no window.
  WeightFill(JobStates* states, JobId job, StateTier* tier);

  // The chunk's weights come into the slot that it was given. Chunks are filled in the order of
  // these calls.
  void Begin(uint32_t slot);
  // Begins to read the next piece; returns the bytes that will be read, 0 when there is none or no
  // staging for it.
  uint64_t BeginNext();
  bool wants_to_move() const { return !over_ && !queue_.empty(); }
  bool lacks_staging() const { return wants_to_move() && riding_ < kRidesMax; }
  uint32_t riding() const { return riding_; }
  bool Owns(uint32_t staging) const { return rides_[staging].state != State::kNone; }
  void EndTransfer(const TierDone& done);
  // The answer is waited for no more: the job fails.
  void GiveUp(const TierLate& late);
  bool NextWork(Work* work);
  // True when a chunk's weights can be fetched now.
  bool EndWork(const WorkDone& done);
  // Not ok: the job must end.
  const Status& failure() const { return failure_; }
  bool moving() const;
  void Abandon();

 private:
  enum class State : uint8_t { kNone, kReading, kReady, kAtWorker };
  struct Ride {  // a piece in staging
    State state = State::kNone;
    uint32_t slot = 0;
    uint32_t piece = 0;
    uint32_t reads = 0;
    uint64_t number = 0;  // in the order in which rides began
    bool out = false;     // its read was given up, and may still end
  };
  struct Fill {  // of a slot
    uint64_t epoch = 0;
    uint32_t next_piece = 0, pieces_left = 0;
  };
  ChunkId ChunkOf(const Ride& ride) const { return states_->window().slots()[ride.slot].chunk; }
  uint64_t ElementsOf(const Ride& ride) const;
  PieceBuffer PieceOf(uint32_t staging) const;
  void Read(uint32_t staging);
  bool IsPast(const Ride& ride) const;
  bool EndPiece(uint32_t staging);
  void EndRide(uint32_t staging);
  void Fail(uint32_t staging, Status why);
  std::string Where(const Ride& ride) const;

  JobStates* const states_;
  const JobId job_;
  StateTier* const tier_;
  std::array<Fill, 2 * shm::kWeightAreasMax> fills_;  // by slot
  FixedRing<uint32_t> queue_;                         // slots with pieces to begin
  std::vector<Ride> rides_;                           // by staging slot
  uint32_t riding_ = 0;
  uint64_t numbers_ = 0;
  bool over_ = false;
  Status failure_;
};

}  // namespace tidepool::memserver
