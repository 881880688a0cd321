// StepDesk: judges and seals complete steps, and hands work to the optimizer workers and takes it
// back.
//
// One thread (the serve loop). WorkerShares decides which job the workers serve next.
#pragma once

#include <vector>

#include "memserver/jobs/tables.h"
#include "memserver/loop/worker_shares.h"
#include "memserver/update/staging/demotion.h"

namespace tidepool::memserver {

class StepDesk {
 public:
  // The demotion belongs to DemotionDesk; its work is handed out and taken back here.
  StepDesk(const LoopNeighbours& neighbours, Tables* tables, Demotion* demotion)
      : neighbours_(neighbours),
        tables_(tables),
        demotion_(demotion),
        workers_(neighbours, tables, [this](Job* job, Work* work) { return NextWork(job, work); }) {
  }
  StepDesk(const StepDesk&) = delete;
  StepDesk& operator=(const StepDesk&) = delete;

  // Seals the open step of every job whose ranks have all ended it and whose gradients are all
  // scanned. True if there was one.
  bool FinishSteps();
  // Takes back finished work. True if there was some.
  bool TakeDone();
  // Gives work to the team while it has room. True when some was given.
  bool FeedTeam() { return workers_.FeedTeam(); }
  // Notes a request of the job (WorkerShares::HoldFor).
  void HoldWorkersFor(const Job& job) { workers_.HoldFor(job); }
  int64_t held_until_ns() const { return workers_.held_until_ns(); }

 private:
  void FinishStep(Job* job);
  void AnswerStep(Job* job, const StepRecord& record, ErrorId error);
  bool NextWork(Job* job, Work* work);
  bool NextHash(Job* job, Work* work);
  bool NextNarrow(Job* job, Work* work);
  void EndHash(const Job& job, const WorkDone& done);
  void EndWork(const WorkDone& done);

  const LoopNeighbours neighbours_;
  Tables* const tables_;
  Demotion* const demotion_;
  WorkerShares workers_;
  std::vector<WorkDone> done_;
};

}  // namespace tidepool::memserver
