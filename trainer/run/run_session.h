// RunSession: a rank's attachments during a run, besides the model: its slot at the server and its
// groups with the other ranks.
//
// One thread (the trainer's main thread). Order: a rank takes its session slot at the server first
// and then meets the other ranks. The server admits nobody before all ranks of a broken run have
// left it, so a meeting never mixes ranks of two runs. (A private server is the exception: rank 0
// starts it and has to tell the others where it is.) Leave is for a broken run: it drops groups and
// slot without a goodbye, so that the server keeps the job, and Attach and Meet may be called
// again. Close is the orderly end: it removes the job.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "client/mem_client.h"
#include "client/provide_frozen.h"
#include "device/device.h"
#include "trainer/comm/nccl/communicator_set.h"
#include "trainer/comm/meeting/done_keys.h"
#include "trainer/run/check_run.h"
#include "trainer/comm/meeting/meeting.h"
#include "trainer/run/job.h"
#include "trainer/launch/rank_place.h"
#include "trainer/launch/rank_roll.h"
#include "trainer/launch/standalone_server.h"
#include "trainer/run/run_options.h"

namespace tidepool::trainer {

// Device resources that a run on a GPU brings; empty on the host. Their owner
// (trainer/run/run_device.h) outlives the session.
struct SessionDevice {
  device::Device* device = nullptr;              // null: the host
  std::optional<client::BroughtMemory> brought;  // the rCache
  device::Stream* group = nullptr;               // the stream in whose order ranks exchange blocks
  void* native_group = nullptr;                  // the same stream as NCCL's type
  // Another rank of the run uses the same GPU: NCCL does not support two ranks on one GPU.
  bool shared = false;
  // Called when the session's flags exist, and before they are unmapped, when no group has
  // operations in flight.
  std::function<Status(const client::Attachment&)> take_flags = nullptr;
  std::function<void()> give_up_flags = nullptr;
  // As client::UploadRange::copy.
  std::function<Status(uint64_t rcache_offset, std::span<const std::byte> bytes)> copy_in = nullptr;
};

// What a session is for.
struct SessionTask {
  ServerOptions server;
  JobOptions job;  // how long it waits; the job's name is in the specification
  client::JobSpec spec;
  std::vector<std::vector<Rank>> groups;  // the layout's data groups
  std::vector<LinkSpec> links = {};       // of a pipeline; the same on all ranks
  // The ranks that share a block's experts with this one, for each such number, ascending.
  std::vector<std::vector<Rank>> expert_groups = {};
  bool routes = false;     // ranks tell one another where their tokens go
  Clock* clock = nullptr;  // outlives the session
  std::string note = {};   // identifies the run (run_note.h)
  bool saves = false;      // rank 0 saves weights after the last step
  // The run may resume after a sealed step. It then waits for a slot that is still taken, for a
  // server that is down, and for other ranks until --rejoin-timeout after their last sign of life.
  bool resumes = false;
  // If the server refuses states on GPUs, ask again with all of them on the host.
  bool states_may_stay_on_host = false;
  // Prints one line when a wait begins, one when it is over.
  std::function<void(const std::string&)> say = nullptr;
  std::function<void(const Status&)> stuck = nullptr;  // see Rendezvous::stuck
  // Called while waiting for other ranks; an error ends the wait.
  std::function<Status()> interrupted = nullptr;
  // What to do if no server answers, in terms of the program that runs; empty: as the error says.
  std::string no_server_fix = {};
  SessionDevice device = {};
};

class RunSession {
 public:
  // Contacts nobody yet. Errors: kConfigBadValue (--pool, --server-timeout, --rejoin-timeout).
  static Result<std::unique_ptr<RunSession>> Make(const RankPlace& place, SessionTask task);
  // Make, Attach and Meet.
  static Result<std::unique_ptr<RunSession>> Open(const RankPlace& place, SessionTask task);
  ~RunSession();

  // True when torchrun has restarted this rank although all ranks had finished: the job is gone,
  // and there is nothing left to do.
  bool DoneBefore() const;
  // Starts the private server if requested, and attaches to the job. Errors: kNoServer, kPoolFull,
  // kRcacheRefused, kJobMismatch and others of attaching; kCollectiveFailed; kSessionEnded (a
  // signal arrived while waiting for a slot).
  Status Attach();
  // Meets the other ranks. Errors: kJobMismatch (names a rank started with other options),
  // kRanksMissing (names the ranks on which it has given up), kCollectiveFailed, kPeerLost, and any
  // other error that ended the slot or the wait meanwhile.
  Status Meet();
  // Puts the job's frozen chunks that the server lacks. All ranks call it after Meet, before
  // anybody uses the rCache. Returns the bytes that this rank has put. Errors: those of
  // client::ProvideFrozen.
  Result<uint64_t> ProvideFrozen(const client::ReadFrozen& read);
  // Call before a Leave that is followed by Attach. Waits for a server that has ended, and reports
  // this slot to it; otherwise it would wait a whole lease for the slot's living process. Ignores
  // errors: Attach meets them again.
  void AwaitServer();
  // Call before Leave, for a job with nothing worth keeping: this rank says goodbye, and the last
  // rank that does removes the job. Errors are ignored: the slot is lost anyway.
  void GiveJobBack();
  // Drops groups and slot without a goodbye. Idempotent.
  void Leave();
  // Call before this program replaces itself, when Leave would wait for a collective that does not
  // end. The next meeting has a new number.
  void LeaveMeeting();
  // Ends the job, all ranks together. No rank says goodbye before all have called Close, so that a
  // rank that dies just before can come back. Then each tells the launcher that it is done
  // (done_marks.h, done_keys.h). Also ends a private server.
  Status Close();

  const RankPlace& place() const { return place_; }
  // Time-out of an operation between ranks. It includes the time that one of them may spend waiting
  // for the server, or starting it.
  int64_t CollectiveTimeoutMs() const;
  // All ranks of the run, for the caller's own collectives, also while an engine has transfers in
  // flight; null before Meet.
  Collective* world() { return world_.get(); }
  // For an engine only, one per data group; null where this rank is not a member. Separate from
  // world().
  std::vector<Collective*> groups() const;
  // In the task's order; null where this rank is at neither end.
  std::vector<RankLink*> links() const;
  // The host groups of the ranks that share this rank's experts, in the task's order.
  std::vector<Collective*> experts() const;
  // A host group of all ranks, for what they tell one another of their routing; null if they do
  // not, or there is one rank.
  Collective* routing() { return routing_.get(); }
  client::ChunkService* service() { return client_.get(); }
  const std::string& socket_dir() const { return socket_dir_; }
  // The specification as the server accepted it: without states on GPUs if it refused them.
  const client::JobSpec& spec() const { return task_.spec; }
  // The last log lines of a private server; empty without one.
  std::string ServerLogTail() const { return server_ ? server_->LogTail() : std::string(); }

 private:
  RunSession(const RankPlace& place, SessionTask task) : place_(place), task_(std::move(task)) {}
  bool standalone() const { return task_.server.standalone; }
  DoneKeys MakeDoneKeys() const;
  Rendezvous MeetingPlace() const;
  StandaloneOptions PrivateServer() const;
  Status StartPrivateServer();
  Status LaunchServer();
  Status ShareSocketDir();
  Status TakeSlot(const client::ClientOptions& options);
  // True when the server that refused should be asked again, with all states on the host.
  bool GivesUpGpuStates(const Status& refused);
  Status MeetWorld();
  // All ranks refuse the run if one was started with other data or options.
  Status CompareNotes();
  // True when the ranks of this run exchange blocks through NCCL; all ranks agree.
  Result<bool> AgreeOnNccl();
  // A group for device memory, built over a host group.
  Result<std::unique_ptr<Collective>> OnDevice(const GroupSpec& group, bool nccl);
  Status MakeGroup(size_t index, bool nccl);
  Status MakeLinks();
  // A rank's state in the launcher's roll.
  RankStanding StandingOf(uint32_t rank) const;
  // Ends a wait for other ranks when the slot is lost or a signal arrived.
  Status Interrupted();
  // The error that ended the slot; ok while it is held.
  Status SlotLost();

  const RankPlace place_;
  SessionTask task_;
  Status no_gpu_states_;  // why the server refused them; ok: not refused
  RunWaits waits_;
  std::optional<RankRollView> roll_;  // under `trainer launch`
  std::unique_ptr<StandaloneServer> server_;
  std::unique_ptr<Meeting> meeting_;
  std::unique_ptr<Collective> world_;
  std::optional<CommunicatorSet> communicators_;  // NCCL's; outlives the groups
  // By data group; null where not a member.
  std::vector<std::unique_ptr<Collective>> group_storage_;
  std::vector<std::unique_ptr<RankLink>> link_storage_;
  std::vector<std::unique_ptr<Collective>> experts_;
  std::unique_ptr<Collective> routing_;
  std::unique_ptr<client::MemClient> client_;
  std::string socket_dir_;
};

}  // namespace tidepool::trainer
