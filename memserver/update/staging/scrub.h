// Scrub: reads every piece of states on NVMe once while training goes on, and checks it, to find
// damage before a job needs the piece.
//
// One thread (the serve loop) owns it. It stages one piece at a time, in one slot of the tier's,
// checked by a worker that has nothing else to do for the piece's job. It changes nothing and ends
// no job: damage is reported here, and a job ends only when an update needs that piece and cannot
// read it either. Invariants: it reads the slot of the chunk's present epoch; a piece counts as
// damaged only after kReadsMax reads while the chunk stayed at that epoch (an outdated slot may be
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
  static constexpr size_t kDamageMax = 64;  // reported in detail; more is only counted
  // Chunks that it visits in a turn to find one with states on NVMe.
  static constexpr uint32_t kChunksPerTurn = 4096;

  // Begins to check the pieces of `jobs`, `pieces` in all; a running scrub continues.
  void Begin(std::vector<JobId> jobs, uint64_t pieces, int64_t now_ns);
  // The job whose piece is next or in flight.
  std::optional<JobId> job() const;
  // Advances; `states` of job(), null if it is gone or not open. True if something was done.
  bool Progress(StateTier* tier, const JobStates* states, int64_t now_ns);
  void EndTransfer(const TierDone& done);
  // Stops waiting for the answer to its read; `states` of the piece's job, null if it is gone.
  void GiveUp(StateTier* tier, const JobStates* states);
  // The piece that waits for a worker, if it belongs to this job.
  bool NextWork(JobId job, const StateTier& tier, const JobStates& states, Work* work);
  // `states` of the piece's job.
  void EndWork(const WorkDone& done, StateTier* tier, const JobStates& states);
  // True while the tier or a worker holds its staging slot.
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
  std::vector<JobId> jobs_;  // remaining jobs; the present one is last
  OwnedPieces staged_;
  uint32_t staging_ = 0;  // slot of its staged piece
  ChunkId chunk_ = 0;     // of the next or staged piece
  uint32_t piece_ = 0;
  uint64_t epoch_ = 0;
  int error_ = 0;  // errno of the read
};

}  // namespace tidepool::memserver
