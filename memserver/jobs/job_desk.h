// JobDesk: how jobs and session slots come and go: control events in, replies out.
//
// One thread (the serve loop). Nothing here blocks; what is slow (zeroing, mapping, closing
// sockets) is the control thread's. It hands each event to the part that owns the state it changes,
// and is where those parts are made:
//   AdmissionQueue  ranks that wait for room        JobLife       a job's phases and its end
//   JobAdmission    slots, and jobs made for them   SessionSlots  slots until they are left
//   DemotionDesk    states on their way to NVMe     SaveDesk      saves in work
//   GpuShareDesk    shares of states on GPUs        AdminCommands what admins change
// A part knows only those named before it in the list of members below.
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
#include "memserver/jobs/sessions/session_slots.h"
#include "memserver/jobs/rows/snapshot_builder.h"
#include "memserver/jobs/tables.h"

namespace tidepool::memserver {

class JobDesk {
 public:
  JobDesk(const LoopNeighbours& neighbours, const LoopOptions& options, Tables* tables);
  JobDesk(const JobDesk&) = delete;
  JobDesk& operator=(const JobDesk&) = delete;

  // What the control thread and the checkpoint thread say.
  void Handle(ControlEvent event);
  void HandleSaved(const SaveResult& saved) { saves_.End(saved); }
  // Ends the session of every slot that broke the protocol in this turn. True when there was one.
  bool ExpelViolators() { return slots_.ExpelViolators(); }
  // Starts saves whose version is complete, ends leases, gives back what removed jobs held. True
  // when something happened.
  bool PollJobs();
  // Ends the sessions on a GPU that has failed, and those that only waited for their copies. True
  // when there was one.
  bool PollGpus() { return slots_.PollGpus(); }
  // Continues the snapshot that is being built. True while there is one.
  bool PollSnapshot();
  // Every job and every waiting rank has the quota that the book says.
  void ApplyQuotas() { commands_.ApplyQuotas(); }

  // For the loop, which brings it ended work and transfers.
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
  AdminCommands commands_;
  SnapshotBuilder snapshots_;
};

}  // namespace tidepool::memserver
