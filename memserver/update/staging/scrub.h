// Scrub: reads every piece of states on NVMe once while training goes on, and checks it: whether
// what a job will need is still there.
//
// One thread (the serve loop) owns it. One piece at a time, in one staging slot of the tier's,
// checked by a worker that has nothing else to do for the piece's job. It changes nothing and ends
// no job: damage is named here, and a job ends only when an update must have that piece and cannot
// read it either.
// Invariants: what is read is the slot of the chunk's present epoch; a piece is called damaged only
// when it was read kReadsMax times while the chunk stayed at that epoch (a slot that is left may be
// overwritten during the read).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "memserver/residency/snapshot.h"
#include "memserver/traffic/state_tier.h"
#include "memserver/update/work.h"

namespace tidepool::memserver {

class Scrub {
 public:
  static constexpr uint32_t kReadsMax = 3;
  static constexpr size_t kDamageMax = 64;  // that is named; more is counted
  // Chunks that it looks at in a turn for one with states on NVMe.
  static constexpr uint32_t kChunksPerTurn = 4096;

  // Begins to check the pieces of `jobs`, `pieces` in all; goes on where one is under way.
  void Begin(std::vector<JobId> jobs, uint64_t pieces, int64_t now_ns);
  // The job whose piece is next, or on its way.
  std::optional<JobId> job() const;
  // Moves on; `states` of job(), null where it is gone or not open. True when something was done.
  bool Progress(StateTier* tier, const JobStates* states, int64_t now_ns);
  void EndTransfer(const TierDone& done);
  // The answer to its read is waited for no more; `states` of the piece's job, null where it is
  // gone.
  void GiveUp(StateTier* tier, const JobStates* states);
  // The piece that waits for a worker, if it is one of this job.
  bool NextWork(JobId job, const StateTier& tier, const JobStates& states, Work* work);
  // `states` of the piece's job.
  void EndWork(const WorkDone& done, StateTier* tier, const JobStates& states);
  // The tier or a worker has its staging.
  bool moving() const { return staged_.AnyMoving(); }
  uint32_t pieces_in_staging() const { return staged_.count(); }  // 0 or 1
  ScrubRow Row(int64_t now_ns) const;

 private:
  enum class Found : uint8_t { kPiece, kNone, kLater };
  Found FindPiece(const JobStates& states);
  void Read(StateTier* tier, const JobStates& states);
  bool EndUnread(const StateTier& tier, const JobStates* states);
  bool IsIn(StagedState state) const;
  void NoteDamage(const StateTier& tier, const JobStates& states, const std::string& what);
  PieceBuffer BufferOf(const StateTier& tier, const JobStates& states) const;

  ScrubRow row_;
  int64_t began_ns_ = 0;
  std::vector<JobId> jobs_;  // left, the present one last
  OwnedPieces staged_;
  uint32_t staging_ = 0;  // slot of its piece, while that is in staging
  ChunkId chunk_ = 0;     // of the piece that is next, or there
  uint32_t piece_ = 0;
  uint64_t epoch_ = 0;
  int error_ = 0;  // of the read
};

}  // namespace tidepool::memserver
