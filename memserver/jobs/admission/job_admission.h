// JobAdmission: decides whether a rank gets a session slot now, and makes the slot, and the job
// when the rank is its first.
//
// One thread (the serve loop). It owns the session numbers and makes the rows of the tables.
// AdmissionQueue owns the ranks that wait for room.
#pragma once

#include <cstdint>
#include <vector>

#include "memserver/jobs/desk_context.h"
#include "memserver/jobs/gpu_share_desk.h"
#include "memserver/residency/job_ledger.h"
#include "memserver/residency/placement.h"

namespace tidepool::memserver {

class JobAdmission {
 public:
  JobAdmission(const DeskContext& context, const GpuShareDesk* gpu_shares)
      : context_(context), gpu_shares_(gpu_shares) {}

  // What a rank asks for: the room of all ranks of its job, and of the job's states unless the job
  // exists.
  Demand DemandOf(const ReserveJob& event) const;
  Ledger CurrentLedger() const;
  // Decides where the states of a new job go, given the free bytes of each NVMe directory, and
  // fills in its demand. Errors: those of PlaceStates and AdmitSpill.
  Result<Placement> Place(const shm::JobSpec& spec, const Ledger& ledger,
                          std::vector<uint64_t> nvme_free, Demand* demand) const;
  // True when an empty server would admit the job.
  bool CouldEverFit(const ReserveJob& event) const;

  // Makes a slot in the job, and the job if it does not exist. Errors say why not, for the rank.
  Result<SessionSlot*> TakeSlot(const ReserveJob& event);
  // Restores the session slot that the rank had at the former server, with its rCache.
  Result<SessionSlot*> TakeSlotAgain(const ResumeSession& event);
  // Tells the rank about its slot and what it has to prepare.
  void Grant(const SessionSlot& slot) const;
  void Refuse(const ReserveJob& event, const Status& why) const;
  // The same for a rank that came back.
  void GrantAgain(const SessionSlot& slot) const;
  void RefuseAgain(const ResumeSession& event, const Status& why) const;

 private:
  static Status CheckJoin(const Job& job, const ReserveJob& event);
  Status CheckAsked(const ReserveJob& event) const;
  Result<uint64_t> TokenOf(JobId job) const;
  Result<Job*> CreateJob(const ReserveJob& event);
  SessionSlot* AddSlot(Job* job, SessionSlot slot);
  void TellAdmitted(const Job& job, uint64_t frozen_bytes) const;

  const DeskContext context_;
  const GpuShareDesk* const gpu_shares_;
  SessionId last_session_ = 0;
};

}  // namespace tidepool::memserver
