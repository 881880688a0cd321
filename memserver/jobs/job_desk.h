// JobDesk: how jobs and session slots come and go: control events in, replies out.
//
// One thread (the serve loop). Nothing here blocks; the control thread does what is slow (zeroing,
// mapping, closing sockets). JobDesk makes its components and hands each event to the one that owns
// the state it changes:
//   AdmissionQueue  ranks that wait for room        JobLife       a job's phases and its end
//   JobAdmission    slots, and jobs made for them   SessionSlots  slots until they are left
//   DemotionDesk    states on their way to NVMe     SaveDesk      saves in progress
//   GpuShareDesk    shares of states on GPUs        StepStreams   steps on their way to a log
//   AdminCommands   what admins change
// A component knows only those named before it in the list of members below.
#pragma once

#include <utility>
#include <vector>

#include "memserver/jobs/admission/admission_queue.h"
#include "memserver/jobs/admission/demotion_desk.h"
#include "memserver/jobs/admission/job_admission.h"
#include "memserver/jobs/commands/admin_commands.h"
#include "memserver/jobs/commands/admin_settings.h"
#include "memserver/jobs/gpu_share_desk.h"
#include "memserver/jobs/job_life.h"
#include "memserver/jobs/saves/save_desk.h"
#include "memserver/jobs/saves/step_streams.h"
#include "memserver/jobs/sessions/session_slots.h"
#include "memserver/jobs/rows/snapshot_builder.h"
#include "memserver/jobs/tables.h"

namespace tidepool::memserver {

class JobDesk {
 public:
  JobDesk(const LoopNeighbours& neighbours, const LoopOptions& options, Tables* tables);
  JobDesk(const JobDesk&) = delete;
  JobDesk& operator=(const JobDesk&) = delete;

  // Handles an event of the control thread or the checkpoint thread.
  void Handle(ControlEvent event);
  void HandleSaved(const SaveResult& saved) {
    saved.of_steps ? steps_.End(saved) : saves_.End(saved);
  }
  // Ends the session of every slot that broke the protocol in this turn. True if there was one.
  bool ExpelViolators() { return slots_.ExpelViolators(); }
  // Starts saves whose version is complete, ends leases, and returns what removed jobs held. True
  // if something happened.
  bool PollJobs();
  // Ends the sessions on a GPU that has failed, and those that only waited for their copies. True
  // if there was one.
  bool PollGpus() { return slots_.PollGpus(); }
  // Continues the snapshot that is being built. True while there is one.
  bool PollSnapshot();
  // Gives every job and every waiting rank the quota of the quota book.
  void ApplyQuotas() { commands_.ApplyQuotas(); }

  // The demotion. The loop brings it finished work and transfers.
  Demotion* mutable_demotion() { return demotions_.mutable_mover(); }

  // For tests and the simulator, between turns.
  const Demotion& demotion() const { return demotions_.mover(); }
  bool is_demoting() const { return demotions_.busy(); }
  const std::vector<WaitingRank>& waiting() const { return queue_.waiting(); }
  const AdminSettings& settings() const { return settings_; }
  const WakeUps<RoomChange>& room_changes() const { return room_changes_; }

 private:
  void On(ReserveJob event);
  void On(const ResumeSession& event);
  void On(const AwaitedRankLost& event);
  void On(AttachSession event) { slots_.Attach(std::move(event)); }
  void On(const Goodbye& event);
  void On(const ConnectionLost& event);
  void On(DeclareSchedule event);
  void On(SaveWeights event) { saves_.Request(std::move(event)); }
  void On(StreamSteps event) { steps_.Request(std::move(event)); }
  void On(AskStates event) { saves_.Ask(std::move(event)); }
  void On(const SnapshotWanted&) { snapshots_.Ask(); }
  void On(StatesImported event) { gpu_shares_.NoteImported(std::move(event)); }
  void On(const StatesKept& event) { gpu_shares_.NoteKept(event); }
  void On(const FormerServersEnded& event);
  void On(AdminCommand event) { commands_.Execute(std::move(event)); }
  void On(const StopServing& event);

  void DropStaleIncarnation(const ReserveJob& event);
  bool PollJob(Job* job);
  bool EndHandOver();
  void Stop();

  const LoopNeighbours neighbours_;
  const LoopOptions options_;
  Tables* const tables_;
  AdminSettings settings_;
  WakeUps<RoomChange> room_changes_;
  UserLog log_;
  const DeskContext context_;
  GpuShareDesk gpu_shares_;
  JobAdmission admission_;
  DemotionDesk demotions_;
  AdmissionQueue queue_;
  JobLife life_;
  SessionSlots slots_;
  SaveDesk saves_;
  StepStreams steps_;
  AdminCommands commands_;
  SnapshotBuilder snapshots_;
};

}  // namespace tidepool::memserver
