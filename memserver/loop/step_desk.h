// StepDesk: what happens between requests: complete steps are judged and sealed, work goes to the
// optimizer workers and comes back.
//
// One thread (the serve loop). Jobs share the workers, and the staging of NVMe, by their weights
// and priorities (fair_share.h).
#pragma once

#include <array>
#include <functional>
#include <vector>

#include "memserver/jobs/tables.h"
#include "memserver/loop/weight_desk.h"

namespace tidepool::memserver {

class StepDesk {
 public:
  StepDesk(const Parts& parts, Tables* tables) : parts_(parts), tables_(tables), weights_(tables) {}

  // Seals the open step of every job whose ranks have all ended it and whose gradients are all
  // scanned. True when there was one.
  bool FinishSteps();
  // Takes back finished work. True when there was some.
  bool TakeDone();
  // Moves spilled states on. True when something was done.
  bool TendTier();
  // Moves states on GPUs on (step_gpus.cpp). True when something was done.
  bool TendGpuStates();
  // Gives work to the team while it has room. True when some was given.
  bool FeedTeam();
  // The job has asked for something. With the priority `high` it has the workers for itself for a
  // while, but for an item of others now and then.
  void HoldWorkersFor(const Job& job);
  // Until then that is so; 0: it is not.
  int64_t held_until_ns() const { return held_until_ns_; }

 private:
  void FinishStep(Job* job);
  void AnswerStep(Job* job, const StepRecord& record, ErrorId error);
  bool NextWork(Job* job, Work* work);
  bool NextHash(Job* job, Work* work);
  void EndHash(const Job& job, const WorkDone& done);
  void EndWork(const WorkDone& done);
  bool TendScrub();
  void TakeLate(const TierLate& late);
  bool TakeStoredAndUpdated(Job* job);
  void TakeFinished(Job* job, ChunkId chunk, bool updated);
  Priority HighestPresent() const;
  Priority HighestAsking() const;
  bool GiveBesideHigh(const std::function<uint64_t(size_t)>& take);
  bool TeamHasEnoughBelow(Priority highest) const;
  bool MayMove(const Job& job) const;
  void EndTransfer(const TierDone& done);
  bool MayReadAhead(const Job& job) const;
  bool FillStaging();
  bool ReadAhead();
  void NoteUpdated(Job* job, ChunkId id);

  const Parts parts_;
  Tables* const tables_;
  WeightDesk weights_;
  std::vector<WorkDone> done_;
  FairShare workers_, drives_, gpus_;
  int64_t held_until_ns_ = 0, next_beside_high_ns_ = 0;
  size_t last_beside_high_ = 0;  // index in tables_->jobs
  // When jobs of each priority have last asked for something, beside others.
  std::array<int64_t, kPriorities> asked_ns_{};
};

}  // namespace tidepool::memserver
