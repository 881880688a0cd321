// Tables: the jobs and session slots of the daemon, and what several parts of the serve loop look
// at: open GPUs, frozen chunks, quotas, how the server ends, counters. What one part alone changes
// is that part's (JobDesk lists them).
//
// The serve loop's thread owns it; nobody else sees it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
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

// What the loop was configured with.
struct LoopOptions {
  LiveSettings live = {};  // as configured at the start
  LimitSettings limits = {};
  TimeSettings times = {};
  // Ranks of the server before this one are waited for as long as the lease, but at least and at
  // most so long.
  int64_t await_ns_min = 0, await_ns_max = INT64_MAX;
  uint64_t rcache_limit = 0;                      // bytes of host-device rCaches of all sessions
  uint32_t owner = 0;                             // uid that memserver runs as
  std::vector<QuotaRule> quotas = {};             // as configured
  std::shared_ptr<const ConfigRows> config = {};  // what /v1/config shows
  uint64_t shared_copy_bytes = 0;                 // see kSharedCopyBytes; 0: by who copies
  uint64_t gpu_copy_bytes = kGpuBytesInFlight;    // behind a root complex, in flight
  bool random_tokens = false;                     // of jobs; a simulator has the same in every run
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
  std::vector<Status> nvme_absent = {};         // by directory: why it is not there; none: all are
  EventQueue<KeepStates>* keeps = nullptr;      // to the main thread; null: nobody keeps anything
  uint32_t own_server = 0;                      // its bit in the index; 0: it is not noted
};

// What has happened since the start.
struct Counters {
  uint64_t turns = 0;
  uint64_t long_turns = 0;                // of more than kLongTurnNs
  int64_t longest_turn_ns = 0;            // of those
  uint64_t bytes_h2d = 0, bytes_d2h = 0;  // of sessions that are gone
  uint64_t parameters_updated = 0;
  uint64_t sessions_ended_badly = 0;
  // Writes of states that failed although they were repeated.
  uint64_t states_unwritten = 0;
  // dropped: a rank came back, or nobody needed the room any more.
  uint64_t demotions = 0, demotions_failed = 0, demotions_dropped = 0;
  uint64_t demoted_bytes = 0;  // that the pool got back
};

// A job in kept memory that waits, whole. Either it lacks an NVMe directory: it waits for a server
// that has all of them. Or killed servers, whose processes have not ended, may still copy into its
// memory or out of it: this server takes it up when they have ended. Its open tiles are closed.
struct SetAside {
  std::unique_ptr<Job> job = nullptr;     // nobody else gets its places in the pool
  uint32_t waits_for = 0;                 // bits of servers that have to end; 0: it lacks a drive
  std::vector<ImportStates> shares = {};  // what is asked for when it is taken up
  uint64_t nonce = 0;
  uint32_t uid = 0;
  Status why = {};  // what its ranks are told

  // The job's states.
  const JobStates& states() const { return *job->states; }
};

// Kept memory that was given up, while killed servers may still copy into some of it: where, the
// damage does not say. The pool gives nothing to anybody until they have ended, and the slots of
// the index stay, so that a later server knows of it as well.
struct Withheld {
  uint32_t waits_for = 0;  // bits of servers that have to end; 0: nothing is withheld
  std::vector<uint32_t> slots = {};
  Status why = {};  // what newcomers are told
};

struct Tables {
  std::unique_ptr<FrozenTable> frozen;              // outlives the jobs, which hold what is in it
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
  // Draining, and another server is to follow: who comes now is told to wait for it.
  bool restarting = false;
  bool handing_over = false;  // that server takes the jobs: nothing new is begun
  bool stopped = false;
  int64_t started_ns = 0;
  Counters counters;
  LostJobs lost;
  WakeSet wake_set;

  // The slot, or the job, that is meant; null where there is none.
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
  // Also those that were set aside.
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
  // Ok where no such job is set aside; else what its ranks are told.
  Status WhySetAside(const std::string& name, uint64_t nonce) const {
    for (const SetAside& job : set_aside) {
      if (job.states().spec().name == name || job.nonce == nonce) return job.why;
    }
    return Status();
  }
  // What a rank hears whose job does not go on here: where another server is to follow, it may
  // wait for that one.
  Status WhyStopping() const {
    if (restarting) return Status(ErrorId::kNotReady, "memserver is being replaced by another one");
    return Status(ErrorId::kSessionEnded, "memserver is stopping");
  }
  // The job of this name that ranks may still join.
  Job* FindJob(const std::string& name) const {
    for (const auto& job : jobs) {
      if (job->phase != JobPhase::kRemoving && job->spec().name == name) return job.get();
    }
    return nullptr;
  }
};

}  // namespace tidepool::memserver
