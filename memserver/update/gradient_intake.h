// GradientIntake: takes the gradients of one job's open step into their slots: copy, widen or add,
// then scan.
//
// One thread (the serve loop) owns it. It names the work for workers (NextWork) and is told when it
// is done (EndWork).
//   request -> accepted -> first micro-batch, of the slot's type: copy to the slot
//                       -> otherwise: copy to the rank's staging buffer -> widen or add
//                          (the buffer is free again after that)
//   all shards of a chunk have their last micro-batch -> scan -> the chunk is complete
// Invariants:
//  1. one request at a time uses the staging buffer of a rank; gradients of one rank and chunk are
//     added in micro-batch order;
//  2. after Drop, the step does not wait for work of the dropped attempt, but no slot is written
//     again before that work has ended.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "memserver/traffic/fixed_ring.h"
#include "memserver/traffic/transfers.h"
#include "memserver/update/work.h"
#include "optim/undo_tile.h"

namespace tidepool::memserver {

class GradientIntake {
 public:
  GradientIntake(JobStates* states, JobId job, const HostPool* pool);

  // After JobStates::Recover: counts the part of the open step that is in kept memory, finishes
  // open additions, and names the work that is due again. `areas` are the undo areas of all workers
  // of the former server. Errors: kKeptMemoryBad.
  Status Recover(std::span<const optim::UndoArea> areas);

  // Counts a checked request. Call once per request, before its first StartGradient.
  void Accept(Rank rank, const shm::Request& request);
  // Starts the copy of an accepted request, or says that it must wait: for the chunk's new version,
  // or for the staging buffer.
  Start StartGradient(Session* session, const shm::Request& request);
  // Ends a copy that has passed; false if it belonged to a dropped attempt.
  bool EndGradient(Session* session, const Copy& copy);

  // The next work on this job's gradients; false if there is none now.
  bool NextWork(Work* work);
  void EndWork(const WorkDone& done);

  // Progress of the open step: the most micro-batches that any shard has accepted, by how many
  // shards, and by all shards of how many chunks.
  struct Reach {
    uint32_t micro_batches = 0;
    uint64_t shards = 0, chunks = 0;
  };
  // O(1): counted as requests come.
  Reach reach() const;
  // True when `rank` has submitted every micro-batch of every chunk that it is a member of.
  bool RankComplete(Rank rank) const { return shards_complete_[rank] == shards_of_rank_[rank]; }
  bool AllScanned() const { return chunks_scanned_ == chunk_count_; }
  bool HalfScanned() const { return chunks_scanned_ > 0 && 2 * chunks_scanned_ >= chunk_count_; }
  bool all_finite() const { return all_finite_; }

  // The step was sealed; begins the next one.
  void BeginStep();
  // The step ends without a seal; drops its gradients.
  void Drop();
  // Grows when something happens that a parked request may wait for.
  uint64_t changes() const { return changes_; }

 private:
  struct Task {  // work that is due
    WorkKind kind = WorkKind::kScan;
    ChunkId chunk = 0;
    Rank rank = 0;
  };
  bool GoesStraight(const shm::Request& request) const;
  bool LandsAsItIs(ChunkId id) const;
  void NoteAccepted(ChunkId id, Rank rank);
  void EndShard(ChunkId id, Rank rank, bool summed = false);
  void CountStored(ChunkId id, Rank rank);
  void KeepStaged(const Copy& copy, Rank rank);
  bool IsPossible(const StagingRecord& staged, const optim::AddPiece* pending) const;
  Status BadShard(ChunkId id, Rank rank, const char* why) const;
  Status RecoverStaged(Rank rank, std::span<const optim::UndoArea> areas);
  optim::AddPiece AddPieceOf(Rank rank, ChunkId id, uint64_t sequence) const;
  void ResetCounts();
  void FillShardWork(const Task& task, Work* work) const;

  JobStates* const states_;
  const JobId job_;
  const HostPool* const pool_;
  const uint32_t chunk_count_;
  std::vector<uint32_t> shards_of_rank_;   // number of chunks that the rank is a member of
  std::vector<uint32_t> shards_complete_;  // of those, with all micro-batches accepted
  std::vector<bool> staging_busy_;         // by rank
  FixedRing<Task> tasks_;
  uint32_t attempt_ = 0;
  uint32_t at_workers_ = 0;        // tasks of this attempt
  uint32_t stale_at_workers_ = 0;  // tasks of dropped attempts
  uint32_t chunks_scanned_ = 0;
  Reach reach_;
  bool all_finite_ = true;
  uint64_t changes_ = 0;
};

}  // namespace tidepool::memserver
