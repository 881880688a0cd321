// RunSession: what one rank holds beside the model while it runs: its place, its slot at the
// server, the other ranks.
//
// One thread (the trainer's main thread). Order: a rank takes its session slot at the server first
// and meets the other ranks then, because the server admits nobody before all ranks of a broken run
// have left it; a meeting therefore never mixes ranks of two runs. (A private server is the
// exception: it is started by rank 0, which has to tell the others where.) Leave is for a run that
// broke: it gives up groups and slot without a goodbye, so that the server keeps the job, and
// Attach and Meet may be called again. Close is the orderly end: the job goes.
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

// What a run on a GPU brings; nothing on the host. Its owner (trainer/run/run_device.h) outlives
// the session.
struct SessionDevice {
  device::Device* device = nullptr;              // null: the host
  std::optional<client::BroughtMemory> brought;  // the rCache
  device::Stream* group = nullptr;               // in whose order ranks exchange blocks
  void* native_group = nullptr;                  // the same for NCCL
  // Another rank of the run is on the same GPU: NCCL has no group of two ranks on one GPU.
  bool shared = false;
  // Called when the session's flags are there, and before they go, when no group has anything in
  // flight.
  std::function<Status(const client::Attachment&)> take_flags = nullptr;
  std::function<void()> give_up_flags = nullptr;
  // As client::UploadRange::copy.
  std::function<Status(uint64_t rcache_offset, std::span<const std::byte> bytes)> copy_in = nullptr;
};

// What a session is for.
struct SessionTask {
  ServerOptions server;
  JobOptions job;  // how long it waits; the name is the specification's
  client::JobSpec spec;
  std::vector<std::vector<Rank>> groups;  // the layout's data groups
  std::vector<LinkSpec> links = {};       // of a pipeline; the same on all ranks
  std::vector<Rank> expert_ranks = {};    // that share this rank's experts; empty: none do
  Clock* clock = nullptr;                 // outlives the session
  std::string note = {};                  // what the run is known by (run_note.h)
  bool saves = false;                     // rank 0 saves weights after the last step
  // The run may go on behind a sealed step. It then waits for a slot that is still taken, for a
  // server that is away, and for other ranks until --rejoin-timeout after their last sign of life.
  bool resumes = false;
  // A server that refuses the states on GPUs is asked again with all of them on the host.
  bool states_may_stay_on_host = false;
  // One line when a wait begins, one when it is over.
  std::function<void(const std::string&)> say = nullptr;
  std::function<void(const Status&)> stuck = nullptr;  // see Rendezvous::stuck
  // Asked while other ranks are waited for; an error ends the wait.
  std::function<Status()> interrupted = nullptr;
  SessionDevice device = {};
};

class RunSession {
 public:
  // Nothing is contacted yet. Errors: kConfigBadValue (--pool, --server-timeout, --rejoin-timeout).
  static Result<std::unique_ptr<RunSession>> Make(const RankPlace& place, SessionTask task);
  // Make, Attach and Meet.
  static Result<std::unique_ptr<RunSession>> Open(const RankPlace& place, SessionTask task);
  ~RunSession();

  // True when torchrun has started this rank again although all ranks had come to their goodbyes:
  // the job is gone, and nothing is left to do.
  bool DoneBefore() const;
  // Starts the private server where asked, and attaches to the job. Errors: kNoServer, kPoolFull,
  // kRcacheRefused, kJobMismatch and others of attaching; kCollectiveFailed; kSessionEnded (a
  // signal came while a slot was waited for).
  Status Attach();
  // Meets the other ranks. Errors: kJobMismatch (names a rank that was started otherwise),
  // kRanksMissing (names those that are not waited for any longer), kCollectiveFailed, kPeerLost,
  // and whatever else ended the slot or interrupted the wait meanwhile.
  Status Meet();
  // Puts those of the job's frozen chunks that the server does not have. All ranks call it after
  // Meet, before anybody uses the rCache. Returns the bytes that this rank has put. Errors: those
  // of client::ProvideFrozen.
  Result<uint64_t> ProvideFrozen(const client::ReadFrozen& read);
  // Call before a Leave that is followed by Attach. Waits for a server that has ended, and tells it
  // of this slot; it would otherwise wait a lease for the slot's living process. An error is not
  // returned: Attach finds it again.
  void AwaitServer();
  // Call before Leave, for a job that has nothing worth keeping: this rank says goodbye, and the
  // job goes with the last rank that does. Errors do not matter to a slot that is lost anyway.
  void GiveJobBack();
  // Gives up groups and slot without a goodbye. Harmless when repeated.
  void Leave();
  // Call before this program is replaced by itself, where Leave would wait for a collective that
  // does not end. The next meeting has a new number.
  void LeaveMeeting();
  // Ends the job, all ranks together. None says goodbye before all have come here, so that a rank
  // that dies just before can come back. Then each tells the launcher (done_marks.h, done_keys.h)
  // that it is done. A private server is ended, too.
  Status Close();

  const RankPlace& place() const { return place_; }
  // How long an operation of the ranks may take. It includes the time for which one of them may
  // wait for the server, or start it.
  int64_t CollectiveTimeoutMs() const;
  // All ranks of the run, for what the caller does together with them, also while an engine has
  // transfers in flight; null before Meet.
  Collective* world() { return world_.get(); }
  // For an engine alone, one a data group; null where this rank is no member. None of them is
  // world().
  std::vector<Collective*> groups() const;
  // As in the task; null where this rank is at neither end.
  std::vector<RankLink*> links() const;
  // The group of the ranks that share this rank's experts, on the host; null where none do.
  Collective* experts() { return experts_.get(); }
  client::ChunkService* service() { return client_.get(); }
  const std::string& socket_dir() const { return socket_dir_; }
  // As the server took the job: without states on GPUs where it refused them.
  const client::JobSpec& spec() const { return task_.spec; }
  // What a private server logged last; empty without one.
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
  // True when the server that refused is to be asked again, with all states on the host.
  bool GivesUpGpuStates(const Status& refused);
  Status MeetWorld();
  // Ranks that were started with other data or options refuse the run, all of them.
  Status CompareNotes();
  // True when the ranks of this run exchange blocks by NCCL; all ranks say the same.
  Result<bool> AgreeOnNccl();
  // A group for blocks of the device, over one of the host's.
  Result<std::unique_ptr<Collective>> OnDevice(const GroupSpec& group, bool nccl);
  Status MakeGroup(size_t index, bool nccl);
  Status MakeLinks();
  // What the launcher's roll says of a rank.
  RankStanding StandingOf(uint32_t rank) const;
  // Ends a wait for other ranks when the slot is lost or a signal came.
  Status Interrupted();
  // What ended the slot; ok while it is held.
  Status SlotLost();

  const RankPlace place_;
  SessionTask task_;
  Status no_gpu_states_;  // why the server refused them; ok: it did not
  RunWaits waits_;
  std::optional<RankRollView> roll_;  // under `trainer launch`
  std::unique_ptr<StandaloneServer> server_;
  std::unique_ptr<Meeting> meeting_;
  std::unique_ptr<Collective> world_;
  std::optional<CommunicatorSet> communicators_;  // of NCCL; outlives the groups
  // By data group; null where not a member.
  std::vector<std::unique_ptr<Collective>> group_storage_;
  std::vector<std::unique_ptr<RankLink>> link_storage_;
  std::unique_ptr<Collective> experts_;
  std::unique_ptr<client::MemClient> client_;
  std::string socket_dir_;
};

}  // namespace tidepool::trainer
