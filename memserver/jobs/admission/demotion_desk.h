// DemotionDesk: decides whose states leave the host for NVMe when a rank that asks for a session
// slot needs their room, or when an admin asks for it (decision 023). The rank is in the queue
// meanwhile, even if it does not wait for jobs to end.
//
// One thread (the serve loop). It owns the one demotion that may be under way and the rank that it
// is for. The mover (Demotion) moves the bytes; this class commits the result.
#pragma once

#include <span>
#include <string>

#include "memserver/jobs/admission/job_admission.h"
#include "memserver/jobs/admission/waiting_rank.h"
#include "memserver/jobs/desk_context.h"
#include "memserver/residency/demotion_choice.h"
#include "memserver/update/staging/demotion.h"

namespace tidepool::memserver {

class DemotionDesk {
 public:
  DemotionDesk(const DeskContext& context, const JobAdmission* admission)
      : context_(context), admission_(admission) {}

  // For a rank that was denied a session slot for lack of room: true when a demotion makes room for
  // it. Otherwise `why` also says what a demotion could not free.
  bool MakesRoom(const ReserveJob& event, bool its_turn, Status* why);
  // Moves the states of a job to NVMe because an admin asked. The rules are those of making room
  // for others, with the job's own account as the one that asks.
  Status Evict(Job* job);
  // Ends the demotion under way without having moved anything.
  void Cancel(const Status& why);
  // Advances the demotion under way. True when something happened.
  bool Poll(std::span<const WaitingRank> waiting);

  // States are being moved, or will be as soon as their job is at rest.
  bool busy() const { return mover_.active() || to_demote_ != 0; }
  const Demotion& mover() const { return mover_; }
  // The mover. The loop brings it finished work and transfers.
  Demotion* mutable_mover() { return &mover_; }

 private:
  bool WouldFit(const ReserveJob& event, const Newcomer::Then& then) const;
  DemotionChoice ChooseFor(const ReserveJob& event) const;
  DemotionChoice ChooseAlone(const Job& job) const;
  Movable MovableOf(const Job& job) const;
  std::string WhyNotMovable(const Job& job) const;
  bool Begin(Job* job, ConnectionId connection, Status* why);
  Status WhyDropped() const;
  bool End();
  bool Commit(Job* job);
  void Drop(Job* job);

  const DeskContext context_;
  const JobAdmission* const admission_;
  Demotion mover_;
  ConnectionId for_rank_ = 0;    // the waiting rank that needs the room
  bool asked_by_admin_ = false;  // no rank waits for it
  JobId to_demote_ = 0;          // job to demote as soon as it is at rest; 0: none
};

}  // namespace tidepool::memserver
