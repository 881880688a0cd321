// Tables: the jobs and session slots of the daemon, and what several components of the serve loop
// read: open GPUs, frozen chunks, quotas, how the server ends, counters. State that one component
// alone changes belongs to that component (JobDesk lists them).
//
// The serve loop's thread owns it; no other thread sees it.
#pragma once

#include <charconv>
#include <cstdint>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "base/clock.h"
#include "base/event_queue.h"
#include "base/log.h"
#include "device/device.h"
#include "memserver/checkpoint/save_request.h"
#include "memserver/jobs/job.h"
#include "memserver/control/mailbox.h"
#include "memserver/jobs/limits.h"
#include "memserver/residency/frozen_table.h"
#include "memserver/residency/kept/kept_index.h"
#include "memserver/residency/kept/lost_jobs.h"
#include "memserver/residency/quota.h"
#include "memserver/residency/settings.h"
#include "memserver/traffic/gpu_streams.h"
#include "memserver/traffic/state_tier.h"
#include "memserver/update/staging/scrub.h"
#include "memserver/update/worker_team.h"
#include "memserver/jobs/wake_set.h"

namespace tidepool::memserver {

// The loop's configuration.
struct LoopOptions {
  LiveSettings live = {};  // as configured at the start
  LimitSettings limits = {};
  TimeSettings times = {};
  // Bounds of how long ranks of the former server are awaited; between them it is the lease.
  int64_t await_ns_min = 0, await_ns_max = INT64_MAX;
  uint64_t rcache_limit = 0;                      // bytes of host-device rCaches of all sessions
  uint32_t owner = 0;                             // uid that memserver runs as
  std::vector<QuotaRule> quotas = {};             // as configured
  std::shared_ptr<const ConfigRows> config = {};  // what /v1/config shows
  uint64_t shared_copy_bytes = 0;                 // see kSharedCopyBytes; 0: automatic
  uint64_t gpu_copy_bytes = kGpuBytesInFlight;    // behind a root complex, in flight
  bool random_tokens = false;                     // of jobs; fixed in a simulator
  // An inline team's work is done in Turn; a simulator does it itself.
  bool run_inline_work = true;
};

// The loop's neighbours; all outlive it.
struct LoopNeighbours {
  Clock* clock = nullptr;
  device::Device* device = nullptr;
  HostPool* pool = nullptr;
  KeptIndex* index = nullptr;
  WorkerTeam* team = nullptr;
  EventQueue<ControlEvent>* events = nullptr;   // from the control thread
  EventQueue<ControlReply>* replies = nullptr;  // to it
  EventQueue<SaveRequest>* saves = nullptr;     // to the checkpoint thread
  EventQueue<SaveResult>* saved = nullptr;      // from it
  StateTier* tier = nullptr;                    // null: no NVMe directory was given
  std::vector<Status> nvme_absent = {};         // by directory: why it is absent; empty: none is
  EventQueue<KeepStates>* keeps = nullptr;      // to the main thread; null: no keeper
  uint32_t own_server = 0;                      // its bit in the index; 0: not recorded there
};

// Events since the start.
struct Counters {
  uint64_t turns = 0;
  uint64_t long_turns = 0;                // of more than kLongTurnNs
  int64_t longest_turn_ns = 0;            // the longest of those
  uint64_t bytes_h2d = 0, bytes_d2h = 0;  // of sessions that are gone
  uint64_t parameters_updated = 0;
  uint64_t sessions_ended_badly = 0;
  // Writes of states that failed even after retries.
  uint64_t states_unwritten = 0;
  // dropped: a rank came back, or nobody needed the room any more.
  uint64_t demotions = 0, demotions_failed = 0, demotions_dropped = 0;
  uint64_t demoted_bytes = 0;  // returned to the pool by them
};

// A job in kept memory that waits, whole. Either it lacks an NVMe directory, and waits for a server
// that has all of them; or killed servers, whose processes have not ended, may still copy into its
// memory or out of it, and this server takes it up when they have ended. Its open tiles are closed.
struct SetAside {
  std::unique_ptr<Job> job = nullptr;     // keeps its places in the pool
  uint32_t waits_for = 0;                 // bits of servers that have to end; 0: it lacks a drive
  std::vector<ImportStates> shares = {};  // to import when it is taken up
  uint64_t nonce = 0;
  uint32_t uid = 0;
  Status why = {};  // what its ranks are told

  // The job's states.
  const JobStates& states() const { return *job->states; }
};

// Kept memory that was given up while killed servers may still copy into some of it; because of the
// damage, which part is unknown. The pool allocates nothing until they have ended, and their index
// slots stay, so that a later server knows as well.
struct Withheld {
  uint32_t waits_for = 0;  // bits of servers that have to end; 0: nothing is withheld
  std::vector<uint32_t> slots = {};
  Status why = {};  // what newcomers are told
};

struct Tables {
  std::unique_ptr<FrozenTable> frozen;              // outlives the jobs that use it
  std::vector<std::unique_ptr<RootComplex>> roots;  // of the GPUs
  std::vector<std::unique_ptr<GpuStreams>> gpus;    // outlive the sessions on them
  std::vector<std::unique_ptr<Job>> jobs;
  std::vector<SetAside> set_aside;
  Withheld withheld;
  std::vector<std::unique_ptr<SessionSlot>> slots;  // in order of arrival
  QuotaBook quotas;
  Scrub scrub;
  JobId last_job = 0;
  bool draining = false;
  // Draining, and another server is to follow: a rank that arrives now is told to wait for it.
  bool restarting = false;
  bool handing_over = false;  // that server takes the jobs: no new work begins
  bool stopped = false;
  int64_t started_ns = 0;
  Counters counters;
  LostJobs lost;
  WakeSet wake_set;

  // The slot or job with this key; null if there is none.
  SessionSlot* FindSlot(ConnectionId connection) const {
    for (const auto& slot : slots) {
      if (slot->connection == connection) return slot.get();
    }
    return nullptr;
  }
  Job* FindJob(JobId id) const {
    for (const auto& job : jobs) {
      if (job->id == id) return job.get();
    }
    return nullptr;
  }
  // Finds a job that is not being removed, by number, else by name; null: none.
  Job* FindNamed(const std::string& who) const {
    JobId id = 0;
    const auto [end, error] = std::from_chars(who.data(), who.data() + who.size(), id);
    const bool is_number = error == std::errc() && end == who.data() + who.size();
    Job* const job = is_number ? FindJob(id) : nullptr;
    return job != nullptr && job->phase != JobPhase::kRemoving ? job : FindJob(who);
  }
  // Includes the jobs that were set aside.
  std::vector<Job*> AllJobs() const {
    std::vector<Job*> all;
    for (const auto& job : jobs) all.push_back(job.get());
    for (const SetAside& aside : set_aside) all.push_back(aside.job.get());
    return all;
  }
  Job* FindJobByNonce(uint64_t nonce) const {
    for (const auto& job : jobs) {
      if (job->phase == JobPhase::kOpen && job->nonce == nonce) return job.get();
    }
    return nullptr;
  }
  // Ok if no such job is set aside; else what its ranks are told.
  Status WhySetAside(const std::string& name, uint64_t nonce) const {
    for (const SetAside& job : set_aside) {
      if (job.states().spec().name == name || job.nonce == nonce) return job.why;
    }
    return Status();
  }
  // What a rank is told whose job does not continue here: it may wait for the server that is to
  // follow, if there is one.
  Status WhyStopping() const {
    if (restarting) return Status(ErrorId::kNotReady, "memserver is being replaced by another one");
    return Status(ErrorId::kSessionEnded, "memserver is stopping");
  }
  // The job of this name that ranks may still join, or null.
  Job* FindJob(const std::string& name) const {
    for (const auto& job : jobs) {
      if (job->phase != JobPhase::kRemoving && job->spec().name == name) return job.get();
    }
    return nullptr;
  }
};

}  // namespace tidepool::memserver
