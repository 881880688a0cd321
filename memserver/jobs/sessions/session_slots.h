// SessionSlots: the slots of ranks from grant to leave, with one clean-up path for death, leave,
// violation and shutdown.
//
// One thread (the serve loop). Nothing here blocks; the control thread does what is slow (zeroing,
// mapping, closing sockets). The rows are in Tables, where the loop serves them.
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

  // Attaches a rank whose memory is prepared, as soon as its job is open.
  void Attach(AttachSession event);
  // Attaches the ranks that waited for the job to open.
  void AttachHeld(Job* job);
  // Leaves a slot; idempotent while it is being left. Copies on a GPU's streams cannot be dropped:
  // the slot, and all that they read and write, stays until they have ended. To all others the rank
  // just leaves a little later.
  void Leave(SessionSlot* slot, Leaving how, const Status& why);
  // Ends the sessions of all ranks of the job.
  void ExpelAllOf(Job* job, const Status& why);
  // Ends all sessions, the newest first.
  void ExpelEverybody(const Status& why);
  // Awaits again a rank that came back while this server lacked something for it: it tries again,
  // and nothing of its run has changed. False if the rank is a new one, or was back already.
  bool AwaitAgain(SessionSlot* slot);
  // The control side no longer touches the memory that this connection zeroed for the job. It
  // reports each granted rank as attached, or as lost, only after that.
  void EndZeroing(ConnectionId connection);

  // Ends the session of every slot that broke the protocol in this turn. True if there was one.
  bool ExpelViolators();
  // Ends the sessions on a GPU that has failed, and those that only waited for their copies. True
  // if there was one.
  bool PollGpus();
  // Ends a job that cannot be made, whose states on NVMe or on a GPU are lost, or whose ranges on
  // NVMe cannot be recorded durably. Its ranks are told why; other jobs go on. True if it did.
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
  // Bounds the log lines about violations.
  int64_t violation_window_ns_ = 0;
  uint32_t violations_in_window_ = 0;
};

}  // namespace tidepool::memserver
