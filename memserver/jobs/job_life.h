// JobLife: how a job opens, loses its ranks, and ends.
//
// One thread (the serve loop). It changes the phase of jobs and their place in the index of kept
// memory. SessionSlots owns the slots and tells it when a rank has left.
#pragma once

#include "memserver/jobs/admission/demotion_desk.h"
#include "memserver/jobs/desk_context.h"
#include "memserver/jobs/gpu_share_desk.h"

namespace tidepool::memserver {

class JobLife {
 public:
  JobLife(const DeskContext& context, GpuShareDesk* gpu_shares, const DemotionDesk* demotions)
      : context_(context), gpu_shares_(gpu_shares), demotions_(demotions) {}

  // Advances a job that is being made: lays out its chunks; when its memory is zeroed and its
  // ranges on NVMe have reached the disk, writes its records and opens it, so that its ranks may be
  // attached. Does one turn's part; true when there was some.
  bool Make(Job* job);
  // Notes that a rank has left: the run can seal no further step. The last one leaves the job
  // detached and kept for its lease, or ends it.
  void NoteRankLeft(Job* job, Rank rank, Leaving how);
  // Stops waiting for a rank of the former server.
  void LoseAwaited(Job* job, Rank rank, const char* cause);
  // Gives up ranks of the former server that neither come back nor are known to have ended (no
  // process identity is known across a container). True when there were some.
  bool PollAwaited(Job* job);
  // True when the lease of a job without ranks has ended just now.
  bool EndLease(Job* job);
  // Begins no more work of the job; it is erased as soon as nobody uses it. Idempotent.
  void BeginRemoval(Job* job);
  // Returns what an ending job held once nobody uses it. True when the job is gone.
  bool EraseIfUnused(Job* job);
  // Answers a rank that said goodbye once its memory is free. For the last rank that includes the
  // job's memory, so that the next run finds the pool as it was.
  void SendFarewells(Job* job);

 private:
  uint64_t PartOf(uint64_t all) const;
  bool List(Job* job);
  bool Open(Job* job);
  // Jobs end with this server.
  bool IsEnding() const { return context_.tables->draining && !context_.tables->handing_over; }
  void BreakRun(Job* job, Rank rank, Leaving how);
  void KeepOrEnd(Job* job);

  const DeskContext context_;
  GpuShareDesk* const gpu_shares_;
  const DemotionDesk* const demotions_;
};

}  // namespace tidepool::memserver
