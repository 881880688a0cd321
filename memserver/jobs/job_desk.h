// JobDesk: how jobs and seats come and go: control events in, replies out. One clean-up path for
// death, leave, violation and shutdown.
//
// One thread (the serve loop). Nothing here blocks; what is slow (zeroing, mapping, closing
// sockets) is the control thread's.
#pragma once

#include <vector>

#include "memserver/control/bounds/user_log_limiter.h"
#include "memserver/residency/demotion_choice.h"
#include "memserver/residency/job_ledger.h"
#include "memserver/jobs/snapshot_builder.h"
#include "memserver/jobs/tables.h"

namespace tidepool::memserver {

class SpillReader;

class JobDesk {
 public:
  JobDesk(const Parts& parts, const LoopOptions& options, Tables* tables)
      : parts_(parts), options_(options), tables_(tables), snapshots_(parts_, options_, tables) {}
  JobDesk(const JobDesk&) = delete;
  JobDesk& operator=(const JobDesk&) = delete;

  void Handle(ControlEvent event);
  void HandleSaved(const SaveResult& saved);
  // Ends the session of every seat that broke the protocol in this turn. True when there was one.
  bool ExpelViolators();
  // Starts saves whose version is complete, ends leases, gives back what removed jobs held. True
  // when something happened.
  bool TendJobs();
  // Ends the sessions on a GPU that has failed, and those that only waited for their copies. True
  // when there was one.
  bool TendGpus();
  // Goes on with the snapshot that somebody wants. True while there is one.
  bool TendSnapshot();
  // Every job and every waiting rank has the quota that the book says.
  void ApplyQuotas();

 private:
  void On(ReserveJob event);
  void On(ResumeSession event);
  void On(AwaitedRankLost event);
  void On(AttachSession event);
  void On(Goodbye event);
  void On(ConnectionLost event);
  void On(DeclareSchedule event);
  void On(SaveWeights event);
  void On(SnapshotWanted event);
  void On(StatesImported event);
  void On(StatesKept event);
  void On(FormerServersEnded event);
  void On(AdminCommand event);
  void On(StopServing event);

  // The queue of ranks that wait for room (job_queue.cpp).
  Status CheckTurn(const ReserveJob& event) const;
  bool NeedsRoom(const ReserveJob& event) const;
  bool FormerSelfLeaves(const ReserveJob& event) const;
  bool ComesAgain(const ReserveJob& event) const;
  void ServeThoseWhoComeAgain();
  void ServeFrom(size_t index, const Seat& seat);
  Demand DemandOf(const ReserveJob& event) const;
  bool LetsPass(const WaitingRank& other, const ReserveJob& event) const;
  std::vector<WaitingRank*> PassedBy(const ReserveJob& event, size_t before) const;
  Status CheckQueue(const ReserveJob& event) const;
  void Enqueue(ReserveJob event, const Status& why, bool had_its_turn);
  bool StaysWaiting(const ReserveJob& event, const Status& why) const;
  bool ServeWaiting();
  bool ForgetWaiting(ConnectionId connection);
  void RefuseWaiting(const Status& why);
  // States that leave the host when a rank needs their room (job_room.cpp).
  bool MakesRoom(const ReserveJob& event, bool its_turn, Status* why);
  bool StaysParked(const ReserveJob& event, bool its_turn, Status* why);
  bool IsDemoting() const { return tables_->demotion.active() || tables_->to_demote != 0; }
  bool WouldFit(const ReserveJob& event, const Newcomer::Then& then) const;
  DemotionChoice ChooseFor(const ReserveJob& event) const;
  DemotionChoice ChooseAlone(const Job& job) const;
  Movable MovableOf(const Job& job) const;
  std::string WhyNotMovable(const Job& job) const;
  bool BeginDemotion(Job* job, ConnectionId connection, Status* why);
  bool TendDemotion();
  bool EndDemotion();
  Status WhyDropped() const;
  // What admins ask for (job_commands.cpp).
  Result<Job*> JobFor(const AdminCaller& caller, const std::string& who) const;
  Status Do(const AdminCaller& caller, const SetJobQuota& command);
  Status Do(const AdminCaller& caller, const SuspendJob& command);
  Status Do(const AdminCaller& caller, const ReleaseJob& command);
  Status Do(const AdminCaller& caller, const EvictJob& command);
  Status Do(const AdminCaller& caller, const DrainJobs& command);
  Status Do(const AdminCaller& caller, const ChangeLogLevel& command);
  Status Do(const AdminCaller& caller, const MuteCheck& command);
  Status Do(const AdminCaller& caller, const StartScrub& command);
  Status Do(const AdminCaller& caller, const ApplySettings& command);
  bool TendLogLevel();

  // States on GPUs (job_gpus.cpp).
  Status AdmitGpuStates(const ReserveJob& event) const;
  static Status CheckBrings(const Job& job, Rank rank, bool brings_rcache);
  uint64_t StatesToMake(const Seat& seat) const;
  Status TakeShare(Seat* seat);
  Status OpenShare(GpuShare* share, GpuStateMemory states);
  bool LetGoOfShares(Job* job);

  Status WhyStopping() const;
  Status CheckJoin(const Job& job, const ReserveJob& event) const;
  void LoseFormerSelf(const ReserveJob& event);
  Status WhyNotToShare(const FrozenHold& frozen) const;
  Result<uint64_t> TokenOf(JobId job) const;
  Result<Job*> CreateJob(const ReserveJob& event);
  Result<Seat*> TakeSeat(const ReserveJob& event);
  Result<Seat*> TakeSeatAgain(const ResumeSession& event);
  Seat* AddSeat(Job* job, Seat seat);
  // Where the states of a new job go, when so much is free in each NVMe directory; fills in what it
  // demands. Errors: those of PlaceStates and AdmitSpill.
  Result<Placement> Place(const shm::JobSpec& spec, const Ledger& ledger,
                          std::vector<uint64_t> nvme_free, Demand* demand) const;
  bool OpenIfReady(Job* job);
  bool EndFailed(Job* job);
  // What a drive did not take (job_unwritten.cpp).
  bool SettleUnwritten(Job* job);
  bool KeepInPool(Job* job, const SpillQueue::Unwritten& piece);
  void Grant(const Seat& seat);
  void Refuse(const ReserveJob& event, const Status& why);
  void Attach(Seat* seat);
  void AttachHeld(Job* job);

  // The one clean-up path; harmless when repeated for a connection that has no seat any more.
  void LeaveSeat(Seat* seat, Leaving how, const Status& why);
  void CompleteLeave(Seat* seat, Leaving how, const Status& why);
  Result<GpuStreams*> StreamsOf(Gpu* gpu);
  Result<std::unique_ptr<Session>> MakeSession(Seat* seat);
  void EndZeroing(ConnectionId connection);
  void LeaveJob(Job* job, Rank rank, Leaving how);
  void LoseAwaited(Job* job, Rank rank, const char* cause);
  bool AwaitAgain(Seat* seat);
  bool TendAwaited(Job* job);
  bool EndHandOver();
  void Stop();
  void CloseSession(Seat* seat, ErrorId reason);
  void SendFarewells(Job* job);
  void BeginRemoval(Job* job);
  bool EraseIfUnused(Job* job);

  Status CheckSave(const Seat* seat, const SaveWeights& event) const;
  static bool HasReadySave(const Job& job);
  bool HasLaneFor(const Job& job);
  Status WhyNotSaved(const Job& job, const WaitingSave& save, int64_t now);
  bool TendSaves(Job* job);
  void StartSave(Job* job, WaitingSave save, int64_t now);
  std::shared_ptr<SpillReader> ReaderOf(const Job& job) const;
  // In the log, as far as the user's lines go: whatever a user can cause at will.
  void Tell(uint32_t uid, LogLevel level, std::string_view message,
            std::initializer_list<LogField> fields);
  template <typename Reply>
  void Send(Reply reply) {
    parts_.replies->Push(ControlReply(std::move(reply)));
  }

  const Parts parts_;
  const LoopOptions options_;
  Tables* const tables_;
  int64_t violation_window_ns_ = 0;  // rate limit of log lines
  uint32_t violations_in_window_ = 0;
  uint64_t served_room_changes_ = 0;
  UserLogLimiter lines_;
  SnapshotBuilder snapshots_;
};

}  // namespace tidepool::memserver
