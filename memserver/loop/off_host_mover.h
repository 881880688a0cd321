// OffHostMover: drives states that are not on the host: those on NVMe and those on GPUs.
//
// One thread (the serve loop), once a turn each. It shares NVMe staging and the updates on GPUs
// between the jobs (fair_share.h), and passes each answer of a drive to the owner of the piece
// (staging_table.h). The policies decide what is moved: SpillQueue, WeightFill, Demotion, Scrub,
// GpuQueue.
#pragma once

#include "memserver/jobs/tables.h"
#include "memserver/loop/weight_desk.h"
#include "memserver/update/staging/demotion.h"

namespace tidepool::memserver {

class OffHostMover {
 public:
  // The demotion belongs to DemotionDesk; the answers to its pieces arrive here.
  OffHostMover(const LoopNeighbours& neighbours, Tables* tables, Demotion* demotion)
      : neighbours_(neighbours), tables_(tables), demotion_(demotion), weights_(tables) {}

  // Takes the answers of the drives and begins the transfers that staging has room for. True if
  // something was done.
  bool PollTier();
  // The same for states on GPUs (decision 026).
  bool PollGpus();

 private:
  void Record(const TierDone& done) const;
  void EndTransfer(const TierDone& done);
  void TakeLate(const TierLate& late);
  void LogLate(const TierLate& late) const;
  Job& JobOf(JobId id) const;
  bool TakeStoredAndUpdated(Job* job);
  void TakeFinished(Job* job, ChunkId chunk, bool updated);
  bool PollScrub();
  bool MayMove(const Job& job) const;
  bool MayReadAhead(const Job& job) const;
  bool FillStaging();
  bool ReadAhead();

  const LoopNeighbours neighbours_;
  Tables* const tables_;
  Demotion* const demotion_;
  WeightDesk weights_;
  FairShare drives_, gpus_;
};

}  // namespace tidepool::memserver
