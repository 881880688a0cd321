// SessionSlots: the slots of ranks from the moment they are granted until they are left. One
// clean-up path for death, leave, violation and shutdown.
//
// One thread (the serve loop). Nothing here blocks; what is slow (zeroing, mapping, closing
// sockets) is the control thread's. The rows are in Tables, where the loop serves them.
#pragma once

#include <cstdint>
#include <memory>

#include "memserver/jobs/desk_context.h"
#include "memserver/jobs/gpu_share_desk.h"
#include "memserver/jobs/job_life.h"

namespace tidepool::memserver {

class SessionSlots {
 public:
  SessionSlots(const DeskContext& context, GpuShareDesk* gpu_shares, JobLife* life)
      : context_(context), gpu_shares_(gpu_shares), life_(life) {}

  // A rank's memory is prepared: it is attached as soon as its job is open.
  void Attach(AttachSession event);
  // Attaches the ranks that waited for the job to open.
  void AttachHeld(Job* job);
  // Harmless when repeated for a slot that is being left. Copies on a GPU's streams cannot be
  // dropped: until they have ended the slot stays, with all that they read and write. For all
  // others the rank just leaves a little later.
  void Leave(SessionSlot* slot, Leaving how, const Status& why);
  // Ends the sessions of all ranks of the job.
  void ExpelAllOf(Job* job, const Status& why);
  // Ends all sessions, the newest first.
  void ExpelEverybody(const Status& why);
  // Awaits a rank again for which this server lacked something as it came back: it tries again, and
  // nothing of its run has changed. False where the rank is a new one, or had come back.
  bool AwaitAgain(SessionSlot* slot);
  // The control side no longer touches the memory that this connection zeroed for the job. Only
  // after that it reports each granted rank as attached, or as lost.
  void EndZeroing(ConnectionId connection);

  // Ends the session of every slot that broke the protocol in this turn. True when there was one.
  bool ExpelViolators();
  // Ends the sessions on a GPU that has failed, and those that only waited for their copies. True
  // when there was one.
  bool PollGpus();
  // Ends a job that cannot be made, whose states on NVMe or on a GPU are lost, or whose ranges on
  // NVMe cannot be noted for good: its ranks hear why, other jobs go on. True when it did.
  bool EndFailed(Job* job);

 private:
  bool EndUnmade(Job* job);
  void Open(SessionSlot* slot);
  Result<std::unique_ptr<Session>> MakeSession(SessionSlot* slot);
  static Attached AnswerTo(const SessionSlot& slot);
  void CompleteLeave(SessionSlot* slot, Leaving how, const Status& why);
  void Close(SessionSlot* slot, ErrorId reason);
  void Erase(SessionSlot* slot);
  void EndAllOn(const GpuStreams& gpu);
  void TellViolation(const SessionSlot& slot);

  const DeskContext context_;
  GpuShareDesk* const gpu_shares_;
  JobLife* const life_;
  // Bounds the log's lines about violations.
  int64_t violation_window_ns_ = 0;
  uint32_t violations_in_window_ = 0;
};

}  // namespace tidepool::memserver
