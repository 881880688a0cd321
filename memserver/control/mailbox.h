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
//   -> ... -> Goodbye or ConnectionLost (every connection ends with exactly one of the two, also
//   when it never attached).
// A rank that comes back after a restart of the server: ResumeSession instead of ReserveJob, then
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
  bool may_wait = false;             // wait for room, in the loop's queue
  bool client_owned_rcache = false;  // memory of a GPU: none of the server's is used for it
  std::string note = {};             // what the run is known by, as shm::HelloFrame has it
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
// The process of a rank that AwaitRank named has ended, or had ended before it could be watched.
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
  bool ours = false;  // this server lacked something for it; the rank lives, and may try again
};
struct DeclareSchedule {
  ConnectionId connection = 0;
  // All chunks of the job, each once (jobs/whole_order.h).
  std::shared_ptr<const std::vector<ChunkId>> order;
};
struct SaveWeights {
  ConnectionId connection = 0;
  UniqueFd directory;
  std::string name;
  Version version = 0;
  std::shared_ptr<shm::Segment> stream = {};  // instead of a file: all states go there
};
struct SnapshotWanted {};
// A rank's share in memory of a GPU, left by the server before this one, is mapped; or it is lost.
struct StatesImported {
  JobId job = 0;
  Rank rank = 0;
  Status result;
  GpuStateMemory states = {};
};
// KeepStates was done: the keeper has the share's memory, or has let go of it.
struct StatesKept {
  JobId job = 0;
  Rank rank = 0;
  bool let_go = false;
};

// Processes that were servers before this one, and had not ended when it started, have: nothing
// that they began is under way any more.
struct FormerServersEnded {
  uint32_t servers = 0;  // bits of their places in the kept index
};

// A change requested through the admin socket. Answered with CommandDone.
struct SetJobQuota {
  std::string job;  // number or name
  QuotaChange change;
};
// A suspended job is not served: its ranks wait and its update stands still. Where an operator
// asked for it, the job is kept beyond its lease.
struct SuspendJob {
  std::string job;
  bool suspended = true;
};
// Gives back all that a job holds. Ranks that it has are ended with `force` only.
struct ReleaseJob {
  std::string job;
  bool force = false;
};
// Moves the states of a job without ranks to NVMe now, as if others needed their room (decision
// 023).
struct EvictJob {
  std::string job;
};
// Admits no new jobs from now on; those that are there go on, restarts of their ranks included.
struct DrainJobs {
  bool draining = true;
};
// Sets the level of the log; the configured one comes back after `for_ns`, where that is not 0.
struct ChangeLogLevel {
  LogLevel level = LogLevel::kInfo;
  int64_t for_ns = 0;
};
// Mutes a check of health: it does not count in the overall result for `for_ns`; 0: it counts
// again.
struct MuteCheck {
  std::string code;
  int64_t for_ns = 0;
};
// Reads and checks all states on NVMe.
struct StartScrub {};
// What the configuration now says of the settings that may change while memserver runs. They hold
// from then on, all or none.
struct ApplySettings {
  LiveSettings live;
  std::vector<QuotaRule> quotas;
  std::shared_ptr<const ConfigRows> config;
  std::vector<std::string> changed;  // keys, for the log
};
struct AdminCommand {
  AdminCaller caller;
  std::shared_ptr<CommandTicket> ticket;
  std::variant<SetJobQuota, SuspendJob, ReleaseJob, EvictJob, DrainJobs, ChangeLogLevel, MuteCheck,
               StartScrub, ApplySettings>
      what;
};

// A command for the main thread.
struct MainCommand {
  enum class What : uint8_t {
    kReload,      // read the configuration again
    kPlanReload,  // say what that would change
    kHandOver,    // end, as SIGTERM does: the keeper holds the jobs for the next memserver
    kEnd,         // end, and all jobs with it
  };
  AdminCaller caller;
  std::shared_ptr<CommandTicket> ticket;
  What what = What::kReload;
};

// For the main thread: memory of a share for the keeper to hold in `slot`; without memory, the
// keeper lets go of that slot. Answered with StatesKept.
struct KeepStates {
  JobId job = 0;
  Rank rank = 0;
  uint32_t slot = 0;
  UniqueFd exported = {};
};

// Take no new ranks, then let the loop return. Jobs and sessions end, unless another server is to
// take them over: then they stay as they are in kept memory, and only the work in hand is finished.
struct StopServing {
  bool hand_over = false;
};

using ControlEvent =
    std::variant<ReserveJob, ResumeSession, AwaitedRankLost, AttachSession, Goodbye, ConnectionLost,
                 DeclareSchedule, SaveWeights, SnapshotWanted, StatesImported, StatesKept,
                 FormerServersEnded, AdminCommand, StopServing>;

struct ReserveGranted {
  ConnectionId connection = 0;
  JobId job = 0;
  SessionId session = 0;
  uint64_t rcache_bytes = 0;
  // Pool memory that the control side must zero before AttachSession (no byte of a former job is
  // ever seen); only for a job's first rank.
  std::vector<std::span<std::byte>> to_zero;
  // Bytes of memory to make on the rank's GPU for states of the job; 0: none.
  uint64_t gpu_state_bytes = 0;
};
// Map memory of a GPU that the keeper gave back; answered with StatesImported.
struct ImportStates {
  JobId job = 0;
  Rank rank = 0;
  device::GpuUuid gpu = {};
  UniqueFd exported;
  uint64_t bytes = 0;
};
// A rank of a job found in kept memory: watch its process until it comes back; AwaitedRankLost when
// the process ends.
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
  uint32_t place = 0;  // 1: the next one
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
  uint32_t attempt = 0;   // at the open step
  // The job's description, which a rank that comes back has not sent.
  std::shared_ptr<const shm::JobSpec> spec = {};
};
// Tell the client, then close. Also the answer to Goodbye (with an ok status) once the session's
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
struct CommandDone {
  std::shared_ptr<CommandTicket> ticket;
  Status result;
};
struct SnapshotReady {
  std::shared_ptr<const Snapshot> snapshot;
};
// A session's memory, or the tables of a job that is gone, for the control thread to destroy:
// unmapping costs about 14 ms/GiB, which no turn of the loop may spend. It comes before the
// SessionOver of the same session.
struct Discard {
  std::unique_ptr<shm::ServerPort> port = nullptr;
  std::unique_ptr<device::Memory> rcache = nullptr;
  ImportedRcache brought = {};
  std::shared_ptr<const void> tables = nullptr;
};
struct Stopped {};

using ControlReply =
    std::variant<ReserveGranted, AwaitRank, Refused, Queued, Attached, SessionOver, PeerGone,
                 SaveDone, CommandDone, SnapshotReady, Discard, ImportStates, Stopped>;

}  // namespace tidepool::memserver
