// Mailbox: the two queues between the control thread (sockets, memory preparation) and the serve
// loop (all state).
//
// control thread -> loop: ControlEvent; loop -> control thread: ControlReply. Neither side ever
// waits for the other.
// A connection is one accepted socket, numbered by the control thread from 1 and never reused; it
// carries at most one session.
// Life of a session:
//   ReserveJob -> (Queued ->) ReserveGranted | Refused
//   -> (control makes and zeroes memory) -> AttachSession -> Attached | Refused
//   -> ... -> Goodbye or ConnectionLost (every connection ends with exactly one of the two, even if
//    it never attached).
// A rank that comes back after a restart of the server: ResumeSession instead of ReserveJob, then
// the same sequence; nothing is zeroed for it.
// the same way; nothing is zeroed for it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/log.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "device/device.h"
#include "memserver/control/command_ticket.h"
#include "memserver/residency/placement.h"
#include "memserver/residency/quota.h"
#include "memserver/residency/settings.h"
#include "memserver/residency/snapshot.h"
#include "memserver/traffic/gpu.h"
#include "shm/spec/job_spec.h"
#include "shm/port.h"
#include "shm/segment.h"

namespace tidepool::memserver {

using tidepool::ConnectionId;

struct ReserveJob {
  ConnectionId connection = 0;
  std::shared_ptr<const shm::JobSpec> spec;  // decoded and valid
  uint64_t fingerprint = 0;                  // of the encoded spec without rank-specific parts
  Rank rank = 0;
  uint32_t uid = 0;
  int32_t pid = 0;
  uint64_t nonce = 0;                // of this incarnation of the rank
  uint64_t process_start = 0;        // of pid; see ReadProcessStart in peer_identity.h
  bool may_wait = false;             // wait for room in the loop's queue
  bool client_owned_rcache = false;  // GPU memory of the rank; the server allocates none
  std::string note = {};             // label of the run, from shm::HelloFrame
};
struct ResumeSession {
  ConnectionId connection = 0;
  Rank rank = 0;
  uint64_t job_nonce = 0, nonce = 0;
  uint64_t rcache_bytes = 0;
  uint32_t uid = 0;
  int32_t pid = 0;
  bool client_owned_rcache = false;
};
// The process of a rank named by AwaitRank has ended, possibly before it could be watched.
struct AwaitedRankLost {
  JobId job = 0;
  Rank rank = 0;
  uint64_t nonce = 0;
};
struct AttachSession {
  ConnectionId connection = 0;
  std::unique_ptr<shm::ServerPort> port;
  // spec->rcache_bytes of memory: on the host, or of brought.gpu.
  std::unique_ptr<device::Memory> rcache;
  ImportedRcache brought = {};
};
struct Goodbye {
  ConnectionId connection = 0;
};
struct ConnectionLost {
  ConnectionId connection = 0;
  std::string cause;
  bool ours = false;  // this server lacked a resource; the rank lives, and may try again
};
struct DeclareSchedule {
  ConnectionId connection = 0;
  // All chunks of the job, each once (control/whole_order.h).
  std::shared_ptr<const std::vector<ChunkId>> order;
};
struct SaveWeights {
  ConnectionId connection = 0;
  UniqueFd directory;
  std::string name;
  Version version = 0;
  std::shared_ptr<shm::Segment> stream = {};  // instead of a file: receives all states
};
// A rank asks for the gradients of all steps behind its job's sealed version. The answer is a
// StepsDone.
struct StreamSteps {
  ConnectionId connection = 0;
  Version version = 0;
  std::shared_ptr<shm::Segment> memory;  // receives them
};
// A process that is no rank asks for all states of a job. The answer is a StatesGiven or Refused;
// SaveDone follows a StatesGiven.
struct AskStates {
  ConnectionId connection = 0;
  uint32_t uid = 0;
  std::string job;                       // number or name
  std::shared_ptr<shm::Segment> memory;  // receives them
};
struct SnapshotWanted {};
// A rank's share of GPU memory, left by the former server, is mapped or lost.
struct StatesImported {
  JobId job = 0;
  Rank rank = 0;
  Status result;
  GpuStateMemory states = {};
};
// KeepStates is done: the keeper holds the share's memory, or has released it.
struct StatesKept {
  JobId job = 0;
  Rank rank = 0;
  bool let_go = false;
};

// Former server processes that had not ended when this one started have ended now: nothing that
// they began is under way any more.
struct FormerServersEnded {
  uint32_t servers = 0;  // their bits in the kept index
};

// Changes a quota on an admin's request. The answer is a CommandDone.
struct SetJobQuota {
  std::string job;  // number or name
  QuotaChange change;
};
// Suspends a job: its ranks wait and its updates stop. If an operator asked for it, the job is kept
// beyond its lease.
struct SuspendJob {
  std::string job;
  bool suspended = true;
};
// Releases everything that a job holds. Its ranks are ended only with `force`.
struct ReleaseJob {
  std::string job;
  bool force = false;
};
// Moves the states of a job without ranks to NVMe now, as if others needed their room (decision
// 023).
struct EvictJob {
  std::string job;
};
// Records when memserver copies and updates for a job, or ends that.
struct RecordSpans {
  std::string job;
  bool record = true;
};
// Admits no new jobs from now on; existing ones continue, restarts of their ranks included.
struct DrainJobs {
  bool draining = true;
};
// Sets the log level; the configured one comes back after `for_ns` unless that is 0.
struct ChangeLogLevel {
  LogLevel level = LogLevel::kInfo;
  int64_t for_ns = 0;
};
// Mutes a health check: it does not count in the overall result for `for_ns`; 0: it counts again.
struct MuteCheck {
  std::string code;
  int64_t for_ns = 0;
};
// Reads and checks all states on NVMe.
struct StartScrub {};
// New values of the settings that may change while memserver runs. They take effect at once, all or
// none.
struct ApplySettings {
  LiveSettings live;
  std::vector<QuotaRule> quotas;
  std::shared_ptr<const ConfigRows> config;
  std::vector<std::string> changed;  // keys, for the log
};
struct AdminCommand {
  AdminCaller caller;
  std::shared_ptr<CommandTicket> ticket;
  std::variant<SetJobQuota, SuspendJob, ReleaseJob, EvictJob, RecordSpans, DrainJobs,
               ChangeLogLevel, MuteCheck, StartScrub, ApplySettings>
      what;
};

// A command for the main thread.
struct MainCommand {
  enum class What : uint8_t {
    kReload,      // read the configuration again
    kPlanReload,  // say what that would change
    kHandOver,    // end as on SIGTERM: the keeper holds the jobs for the next memserver
    kEnd,         // end, and end all jobs
  };
  AdminCaller caller;
  std::shared_ptr<CommandTicket> ticket;
  What what = What::kReload;
};

// For the main thread: gives the keeper a share's memory to hold in `slot`; without memory, the
// keeper releases that slot. The answer is a StatesKept.
struct KeepStates {
  JobId job = 0;
  Rank rank = 0;
  uint32_t slot = 0;
  UniqueFd exported = {};
};

// Takes no new ranks, then ends the loop. Jobs and sessions end, unless another server is to take
// them over: then they stay as they are in kept memory, and only the work in hand is finished.
struct StopServing {
  bool hand_over = false;
};

using ControlEvent =
    std::variant<ReserveJob, ResumeSession, AwaitedRankLost, AttachSession, Goodbye, ConnectionLost,
                 DeclareSchedule, SaveWeights, StreamSteps, AskStates, SnapshotWanted,
                 StatesImported, StatesKept, FormerServersEnded, AdminCommand, StopServing>;

struct ReserveGranted {
  ConnectionId connection = 0;
  JobId job = 0;
  SessionId session = 0;
  uint64_t rcache_bytes = 0;
  // Pool memory that the control side must zero before AttachSession (so that no byte of a former
  // job is ever seen); only for a job's first rank.
  std::vector<std::span<std::byte>> to_zero;
  // Bytes of GPU memory to allocate for the rank's share of the job's states; 0: none.
  uint64_t gpu_state_bytes = 0;
};
// Maps GPU memory that the keeper returned. The answer is a StatesImported.
struct ImportStates {
  JobId job = 0;
  Rank rank = 0;
  device::GpuUuid gpu = {};
  UniqueFd exported;
  uint64_t bytes = 0;
};
// Watches the process of a rank whose job was found in kept memory until the rank comes back;
// AwaitedRankLost when the process ends.
struct AwaitRank {
  JobId job = 0;
  Rank rank = 0;
  uint64_t nonce = 0;
  int32_t pid = 0;
  uint64_t process_start = 0;  // the pid may belong to another process by now
};
struct Refused {
  ConnectionId connection = 0;
  Status why;
};
// No room now: the rank waits, and is granted or refused later.
struct Queued {
  ConnectionId connection = 0;
  uint32_t place = 0;  // 1: next in the queue
  Status why;
};
struct Attached {
  ConnectionId connection = 0;
  SessionId session = 0;
  JobId job = 0;
  bool weights_ready = false;
  Version sealed_version = 0;
  uint64_t data_cursor = 0;
  float loss_scale = 1;
  uint32_t scaler_steps = 0;
  uint64_t random_state = 0;
  uint64_t pool_bytes = 0;
  uint64_t job_nonce = 0;
  bool last_skipped = false;
  std::string note = {};  // of the job
  uint32_t attempt = 0;   // of the open step
  // The job's description, which a rank that comes back does not send.
  std::shared_ptr<const shm::JobSpec> spec = {};
};
// Tells the client, then closes. Also the answer to Goodbye (with an ok status), once the session's
// memory is free: the client waits for it.
struct SessionOver {
  ConnectionId connection = 0;
  Status why;
};
struct PeerGone {
  ConnectionId connection = 0;
  Rank rank = 0;
};  // tell the client that another rank died
struct SaveDone {
  ConnectionId connection = 0;
  Status result;
};
struct StepsDone {
  ConnectionId connection = 0;
  Status result;
};
// The states of this version follow through the memory of AskStates.
struct StatesGiven {
  ConnectionId connection = 0;
  Version version = 0;
  std::shared_ptr<const shm::JobSpec> spec;
  std::string note;  // of the job
  std::shared_ptr<shm::Segment> memory;
};
struct CommandDone {
  std::shared_ptr<CommandTicket> ticket;
  Status result;
};
struct SnapshotReady {
  std::shared_ptr<const Snapshot> snapshot;
};
// A session's memory, or the tables of a removed job, for the control thread to destroy: unmapping
// costs about 14 ms/GiB, too much for a turn of the loop. It precedes the SessionOver of the same
// session.
struct Discard {
  std::unique_ptr<shm::ServerPort> port = nullptr;
  std::unique_ptr<device::Memory> rcache = nullptr;
  ImportedRcache brought = {};
  std::shared_ptr<const void> tables = nullptr;
};
struct Stopped {};

using ControlReply = std::variant<ReserveGranted, AwaitRank, Refused, Queued, Attached, SessionOver,
                                  PeerGone, SaveDone, StepsDone, StatesGiven, CommandDone,
                                  SnapshotReady, Discard, ImportStates, Stopped>;

}  // namespace tidepool::memserver
