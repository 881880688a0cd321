// Job: one training job with everything that the serve loop knows about it.
//
// One thread (the serve loop). A plain struct: the classes inside it guard their own invariants.
// Besides, these hold:
//  1. slots[rank] is the slot of that rank, or null;
//  2. a *run* is one set of ranks from the first slot to the last; once a rank has left, the run is
//     broken: its open step can never be sealed, and no new rank may join before all have left. A
//     rank is *awaited* when it belonged to the run of the server before this one and has not come
//     back: it has a nonce in kept memory, but no slot;
// 3. a job in kRemoving gets no work, and goes away when neither the workers nor the checkpoint
//    thread use it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/unique_fd.h"
#include "memserver/checkpoint/step_stream.h"
#include "memserver/jobs/fair_share.h"
#include "memserver/jobs/sessions/session_slot.h"
#include "memserver/jobs/step_figures.h"
#include "memserver/jobs/wake_ups.h"
#include "memserver/residency/job_states.h"
#include "memserver/residency/quota.h"
#include "memserver/residency/spans/span_log.h"
#include "memserver/update/gpu_queue.h"
#include "memserver/update/gradient_intake.h"
#include "memserver/update/step_numbers.h"
#include "memserver/update/step_tracker.h"
#include "memserver/update/update_queue.h"
#include "memserver/update/staging/weight_fill.h"
#include "shm/segment.h"
#include "shm/spec/job_spec.h"

namespace tidepool::memserver {

// The phases of a job's life.
enum class JobPhase {
  // Being made: the control side zeroes its memory for the first rank while the loop lays out its
  // chunks, then the loop writes its first records. Both in slices (limits.h).
  kZeroing,
  kOpen,      // ranks may attach; detached when there is no slot
  kRemoving,  // memory is returned as soon as nobody uses it
};

// A save that waits for its turn.
struct WaitingSave {
  ConnectionId connection = 0;
  UniqueFd directory;
  std::string name;
  uint64_t number = 0;                         // in the order of requests
  std::optional<int64_t> waits_since_ns = {};  // when it began to wait for a lane (save_lanes.h)
  std::shared_ptr<shm::Segment> stream = {};   // instead of a file
  bool of_no_rank = false;  // a process that is no rank asked (AskStates); it is the reader
};

// A stream of the job's steps.
struct RunningSteps {
  ConnectionId connection = 0;  // of the rank that asked
  std::shared_ptr<StepFeed> feed;
  std::shared_ptr<std::atomic<bool>> asker_gone;
};

// Copies out of the pool for one step, summed over all ranks.
struct StepTraffic {
  uint64_t fetches = 0;
  uint64_t fetches_waited = 0;  // of these, those that waited for their chunk's update
  int64_t fetch_wait_ns = 0;    // how long these waited, together
  uint64_t bytes = 0;           // of all fetches
};

struct NarrowTask {  // a shard of weights to convert to its 16-bit form
  ChunkId chunk = 0;
  Rank rank = 0;
};

struct Job {
  // `tier` may be null where the job spills nothing.
  Job(JobId job_id, std::unique_ptr<JobStates> job_states, HostPool* pool,
      StateTier* tier = nullptr);

  // Never changes.
  const JobId id;
  uint64_t nonce = 0;
  uint64_t fingerprint = 0;
  uint32_t uid = 0;
  std::string note;           // label of the run, given by the job's first rank
  uint32_t index_slot = 0;    // in the kept index, while recorded
  bool leaves_index = false;  // removed, but recorded until no GPU copies for it
  std::string account;        // whose quota it uses; set with the quota by SetQuota
  Quota quota;
  // Shares of the optimizer workers and of host copies, in bytes of memory traffic.
  Share worker_share, copy_share;
  // Its share of the NVMe directories, in bytes read and written.
  Share drive_share;
  // Its share of updates on GPUs, in bytes over the host link.
  Share gpu_share;
  std::vector<std::array<Share, kLaneWays>> root_shares;  // for copies of GPUs; see RootShare
  // The rank that is served next, where jobs share the copies.
  size_t next_slot = 0;
  // State that each component keeps for the job.
  const std::unique_ptr<JobStates> states;
  GradientIntake intake;
  StepTracker step;
  StepNumbers numbers;
  SpillQueue spills;
  GpuQueue gpus;  // chunks whose states lie on GPUs
  UpdateQueue updates;
  WeightFill fill;
  FixedRing<NarrowTask> narrows;
  // The job's life.
  JobPhase phase = JobPhase::kZeroing;
  bool suspended = false;              // by an admin
  bool suspended_by_operator = false;  // by an operator: its lease is stopped
  bool client_owned_rcache = false;    // of all ranks of its run, or of none
  ConnectionId zeroing_connection = 0;
  // The control side is writing to the job's memory, so it cannot be returned yet.
  bool being_zeroed = false;
  // Zeroing has ended; the job opens once its ranges on NVMe have reached the disk.
  bool zeroed = false;
  std::vector<SessionSlot*> slots;      // by rank
  int64_t awaiting_since_ns = 0;        // when this server found the job in kept memory
  std::vector<ConnectionId> farewells;  // ranks that said goodbye and await the answer
  int64_t detached_ns = 0;              // when the last rank left its slot
  int64_t demotable_ns = 0;             // no demotion before this time; set when one failed
  Status demotion_failure;              // why the last demotion failed
  Status making_failure;                // why the job cannot be made
  uint32_t work_at_team = 0;
  uint64_t bytes_at_team = 0;  // bytes that this work touches
  std::vector<WaitingSave> waiting_saves;
  std::vector<ConnectionId> running_saves;  // each holds `updates`
  std::vector<RunningSteps> running_steps;  // each has a gate of `updates`
  // The rank whose request for weights on NVMe is served next.
  size_t next_filled = 0;
  uint64_t ahead_seen = 0;  // for WeightDesk: progress when there was nothing to read ahead
  // Figures for the snapshot.
  StepFigures figures;
  StepTraffic open_traffic, sealed_traffic;  // of the open step so far; of the last sealed one
  uint64_t parameters_updated = 0;
  std::shared_ptr<SpanLog> spans;  // while somebody records what is done for the job; else null

  // Its specification.
  const shm::JobSpec& spec() const { return states->spec(); }
  // True while a transfer or a worker holds a part of it, for NVMe or a GPU.
  bool IsMoving() const { return spills.moving() || fill.moving() || gpus.moving(); }
  bool HasSlots() const;
  // Its records in kept memory are valid.
  bool IsRecorded() const { return phase == JobPhase::kOpen; }
  // True when nothing of it changes until a rank arrives: every chunk is at the sealed version, and
  // no work of it is in progress.
  bool AtRest() const;
  bool IsAwaited(Rank rank) const {
    return IsRecorded() && slots[rank] == nullptr && NonceOf(rank) != 0;
  }
  // True while copies on a GPU's streams, for ranks or for updates, may still touch its memory.
  bool HasGpuCopies() const;
  // True when a rank has a slot or is awaited.
  bool HasRanks() const;
  void SetQuota(std::string account_name, const Quota& new_quota);
  // Its share of copies behind a root complex, in one direction.
  Share& RootShare(size_t root, LaneWay way);
  bool run_broken() const { return run() != RunState::kWhole; }
  // True when every rank of the run said goodbye. Requires IsRecorded().
  bool AllLeftWell() const;
  // The first rank that is neither here nor expected back; 0 if there is none.
  Rank FirstMissing() const;
  // The run's state, from kept memory; kWhole while the job is not recorded.
  RunState run() const;
  void SetRun(RunState state);
  uint64_t NonceOf(Rank rank) const;
  // Notes that a parked request of the job may go on.
  void NoteProgress(JobProgress why) { progress_.Note(why); }
  const WakeUps<JobProgress>& progress() const { return progress_; }
  // Grows when a parked request may go on, for whatever reason.
  uint64_t Changes() const {
    return progress_.total() + intake.changes() + states->frozen_changes();
  }

 private:
  WakeUps<JobProgress> progress_;
};

// Counts a shard whose weights have arrived and are converted; the chunk may be complete with it.
void CountLoadedShard(Job* job, ChunkId chunk);
// Gives a keeper slot to each share of states on GPUs that has none yet. There are enough slots
// (GpuShareDesk::Admit).
void GiveShareSlots(std::span<Job* const> jobs);
// Gives up an open step that can never be sealed: its gradients are dropped, and the ranks that
// ended it are answered with kPeerLost.
void AbandonOpenStep(Job* job);

}  // namespace tidepool::memserver
