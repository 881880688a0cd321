// AdmissionQueue: the ranks that ask for a session slot, and those that wait for room for their
// job.
//
// One thread (the serve loop). It owns the queue, which is by priority, then in order of arrival.
// A rank that needs room queues behind those that wait already. Exceptions: ranks whose job has its
// room, small jobs of other users (queue_passing.h), and ranks whose stale incarnation is being
// removed. The queue is scanned again only when a RoomChange was noted.
#pragma once

#include <cstddef>
#include <vector>

#include "memserver/jobs/admission/demotion_desk.h"
#include "memserver/jobs/admission/job_admission.h"
#include "memserver/jobs/admission/waiting_rank.h"
#include "memserver/jobs/desk_context.h"

namespace tidepool::memserver {

class AdmissionQueue {
 public:
  AdmissionQueue(const DeskContext& context, JobAdmission* admission, DemotionDesk* demotions)
      : context_(context), admission_(admission), demotions_(demotions) {}

  // Grants the rank a session slot, queues it, or refuses it.
  void Reserve(ReserveJob event);
  // Serves the waiting ranks for which there is room now. True when the queue was scanned.
  bool Poll();
  // Removes a rank whose connection has ended. True when it was waiting.
  bool Forget(ConnectionId connection);
  void RefuseAll(const Status& why);
  // Applies the accounts and priorities of the quota book, and reorders the queue by them.
  void ApplyQuotas();

  const std::vector<WaitingRank>& waiting() const { return waiting_; }

 private:
  Status CheckTurn(const ReserveJob& event) const;
  bool NeedsRoom(const ReserveJob& event) const;
  bool StaleIncarnationLeaves(const ReserveJob& event) const;
  bool ComesAgain(const ReserveJob& event) const;
  bool StaysParked(const ReserveJob& event, bool its_turn, Status* why);
  bool LetsPass(const WaitingRank& other, const ReserveJob& event) const;
  std::vector<WaitingRank*> PassedBy(const ReserveJob& event, size_t before);
  bool IsHeldUp(size_t index) const;
  Status CheckPlaces(const ReserveJob& event) const;
  void Enqueue(ReserveJob event, const Status& why, bool had_its_turn);
  void ServeThoseWhoComeAgain();
  bool ServeOrRefuse(size_t index);
  void GiveSlot(size_t index, const SessionSlot& slot);
  Priority PriorityOf(const ReserveJob& event) const;

  const DeskContext context_;
  JobAdmission* const admission_;
  DemotionDesk* const demotions_;
  std::vector<WaitingRank> waiting_;
  uint64_t seen_changes_ = 0;  // room changes at the last scan
};

}  // namespace tidepool::memserver
