// Snapshot: the state of the daemon at the end of one turn, for the admin socket. Immutable once
// published; any thread may read it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/ids.h"
#include "memserver/residency/kept/lost_jobs.h"
#include "memserver/residency/quota.h"
#include "memserver/residency/spans/request_waits.h"
#include "memserver/residency/spans/span_log.h"
#include "memserver/residency/step_times.h"
#include "shm/spec/job_spec.h"
#include "shm/step_numbers.h"

namespace tidepool::memserver {

// The state of a chunk.
enum class ChunkState : uint8_t {
  kEmpty,      // weights have not arrived yet
  kResident,   // in host memory, current
  kGradients,  // resident, gradients of the open step are arriving
  kComplete,   // resident, all gradients of the open step are in and scanned
  kUpdateDue,  // the step is sealed, this chunk's update has not started
  kUpdating,   // a worker is updating it
  kFrozen,     // in host memory, read only, shared by all jobs of the user that list it
};
inline constexpr std::array kChunkStates = {
    ChunkState::kEmpty,     ChunkState::kResident, ChunkState::kGradients, ChunkState::kComplete,
    ChunkState::kUpdateDue, ChunkState::kUpdating, ChunkState::kFrozen};

// One letter per state, as in the residency picture: '_', '.', 'g', 'G', 'O', 'A', '='.
char LetterOf(ChunkState state);
const char* NameOf(ChunkState state);

// A chunk.
struct ChunkRow {
  ChunkState state = ChunkState::kEmpty;
  uint32_t data_group = 0;
  uint64_t elements = 0;
  DType dtype = DType::kF32;  // of one element
  // Bytes of all its planes; for a frozen chunk, of its content.
  uint64_t bytes = 0;
  bool spilled = false;  // master, momentum and variance lie on NVMe
  bool on_gpu = false;   // they lie on a GPU
  // True if the 16-bit weights lie on NVMe too; true if a copy of them can be fetched now.
  bool weights_spilled = false, in_window = false;
  Version version = 0;
  // Bit r: rank r has fetched this version, and nothing has been fetched over it since.
  uint64_t ranks_cached = 0;
  // Bit r: rank r waits for the answer to a fetch; to a gradient (or first weights) that it sent.
  uint64_t ranks_fetching = 0, ranks_sending = 0;
  uint64_t fetches = 0;
  // The last step whose weights a rank fetched, since memserver has the job; 0: none.
  Version fetched_step = 0;
};

// An attached rank.
struct SessionRow {
  SessionId session = 0;
  Rank rank = 0;
  int32_t pid = 0;
  uint64_t rcache_bytes = 0;
  uint64_t bytes_h2d = 0, bytes_d2h = 0;  // since attach
  uint64_t requests = 0, requests_parked = 0;
  RequestWaits waits = {};
};

// Progress of a job's step. A micro-batch is in its forward pass until its first gradient comes.
struct StepProgress {
  // "forward", "backward", "ending" (all gradients have arrived, the verdict has not), "updating";
  // "" while loading.
  const char* phase = "";
  uint32_t micro_batch = 0, micro_batches = 0;  // from 1; 0 while updating
  // Chunks whose gradients of this micro-batch have arrived; while updating, chunks whose update is
  // done.
  uint64_t chunks_done = 0;
  // Fetches of the last sealed step, by all ranks; `fetches_waited` of them waited for the update
  // of their chunk, together for `fetch_wait_ns`.
  uint64_t fetches = 0, fetches_waited = 0, bytes_fetched = 0;
  int64_t fetch_wait_ns = 0;
};

// A job.
struct JobRow {
  JobId job = 0;
  std::string name;
  uint32_t uid = 0;
  // "loading", "training", "updating", "detached", "demoting" (detached, its states go to NVMe),
  // "awaiting" (its ranks, after a restart), "ending".
  std::string state;
  uint32_t world = 0;
  DType dtype = DType::kF32;  // of most of its chunks; ChunkRow has each one's
  Version version = 0;        // sealed steps
  uint64_t parameters = 0;
  uint64_t pool_bytes = 0, rcache_bytes = 0;
  // Pool bytes that it shares with the user's other jobs; not in pool_bytes.
  uint64_t frozen_bytes = 0;
  uint64_t nvme_bytes = 0;  // two slots for each spilled chunk
  uint64_t chunks_spilled = 0;
  uint64_t chunks_weights_spilled = 0;  // of these, with 16-bit weights only on NVMe
  // Slots of the window for those weights; chunks that were read into it.
  uint64_t weight_slots = 0, weights_filled = 0;
  // Those of chunks_spilled that were demoted.
  uint64_t chunks_demoted = 0;
  // Bytes of states on GPUs: two slots a chunk, and staging.
  uint64_t gpu_bytes = 0;
  uint64_t chunks_on_gpu = 0;
  std::string account;
  Quota quota;
  bool suspended = false;
  int64_t lease_ns = 0;  // how long it is kept once its ranks are gone
  // Until when a job without ranks is kept, in seconds since 1970; 0: it has ranks; INT64_MAX:
  // without end.
  int64_t kept_until = 0;
  // Bytes of memory traffic by workers for it, since memserver started.
  uint64_t optimizer_bytes = 0;
  double step_seconds = 0;  // between the last two seals
  StepTimes step_times;     // since memserver has the job
  // What a rank reported about the last step, and the tokens of all reported steps.
  std::optional<shm::StepFacts> step_facts;
  uint64_t tokens = 0;
  double grad_norm = 0;
  uint64_t steps_skipped = 0;
  StepProgress step;
  std::vector<SessionRow> sessions;
  std::vector<ChunkRow> chunks;              // by id: trained chunks, then frozen ones
  std::shared_ptr<const shm::JobSpec> spec;  // it lists the parameters
  std::shared_ptr<const SpanLog> spans;      // null: not recorded
};

// An NVMe directory.
struct NvmeDirectoryRow {
  std::string path;
  uint64_t bytes = 0, bytes_used = 0;
  uint64_t bytes_read = 0, bytes_written = 0;  // since start; states and manifests
  bool failed = false;                         // a flush failed; it takes no new jobs
};

// A check of all states on NVMe (update/scrub.h).
enum class ScrubState : uint8_t { kNever, kRunning, kDone };
struct ScrubDamage {
  JobId job = 0;
  std::string name;
  ChunkId chunk = 0;
  uint32_t piece = 0;
  std::string directory;
  uint64_t offset = 0;  // of the piece in the data file
  std::string what;
};
struct ScrubRow {
  ScrubState state = ScrubState::kNever;
  uint64_t pieces = 0, pieces_checked = 0;  // pieces: of the jobs at its begin
  uint64_t bytes_checked = 0;
  uint64_t repetitions = 0;  // reads of a piece that was not intact at first
  uint64_t damaged = 0;
  double seconds = 0;
  std::vector<ScrubDamage> damage = {};  // the first few
};

// Jobs without ranks whose states go to NVMe because others need the room (update/demotion.h).
struct DemotionRow {
  JobId job = 0;  // the one being demoted; 0: none
  std::string name = {};
  uint64_t pieces = 0, pieces_written = 0;
  // Counts since the start. Dropped: a rank came back, or nobody needed the room any more.
  uint64_t done = 0, failed = 0, dropped = 0;
  uint64_t bytes_freed = 0;  // of the pool
};

// A piece of states that a drive did not take.
struct UnwrittenRow {
  JobId job = 0;
  std::string name;
  ChunkId chunk = 0;
  uint32_t piece = 0;
  std::string directory;
  uint64_t offset = 0;  // in the data file
  int error = 0;        // errno
  bool in_pool = true;  // else the job waits for room
};

// A read or a write that a drive has not completed within the deadline.
struct LateRow {
  JobId job = 0;  // 0: the directory's own tables, or a removed job
  std::string name;
  ChunkId chunk = 0;
  uint32_t piece = 0;
  std::string directory;
  uint64_t offset = 0;
  bool write = false;
  double seconds = 0;
  bool lost = false;  // no longer waited for
};

// All NVMe directories together.
struct NvmeRow {
  uint64_t bytes = 0, bytes_used = 0;          // of all directories
  uint64_t bytes_read = 0, bytes_written = 0;  // since start
  uint64_t repetitions = 0;                    // of failed reads and writes
  // Transfers; blocks that the drive has held for 10 s and more.
  uint32_t in_flight = 0, stalled = 0;
  std::vector<NvmeDirectoryRow> directories;
  std::string failed;  // one of the failed directories
  std::string engine;  // I/O engine for reads and writes
  ScrubRow scrub;
  DemotionRow demotion;
  uint64_t writes_failed = 0;  // after all retries, since start
  // Pieces in the pool because a drive did not take them.
  uint64_t pieces_in_pool = 0, bytes_in_pool = 0;
  uint64_t pieces_waiting = 0;               // taken by neither the drive nor the pool
  std::vector<UnwrittenRow> unwritten = {};  // the first few of both kinds
  std::vector<LateRow> late = {};
};
inline constexpr size_t kUnwrittenRowsMax = 64;

// A rank whose job waits for room.
struct WaitingRow {
  std::string name = {}, account = {};
  uint32_t uid = 0;
  Rank rank = 0;
  int32_t pid = 0;
  Priority priority = Priority::kNormal;
  uint64_t pool_bytes = 0, rcache_bytes = 0;  // of the whole job
  int64_t waited_ns = 0;
  std::string why = {};
};

// The quota of an account, and its use of the pool.
struct AccountRow {
  std::string account;
  Quota quota;
  uint64_t used = 0, room = 0;  // room: the largest job that would be admitted now
  uint64_t nvme_used = 0;
};

// A job in kept memory that waits (Tables::set_aside).
struct SetAsideRow {
  std::string name;
  uint32_t uid = 0;
  std::string why;
};

// A muted health check.
struct MuteRow {
  std::string code;
  int64_t left_ns = 0;
};

// The current settings, each with its given value and origin.
struct ConfigRow {
  std::string key = {}, value = {};
  // "default", "/etc/tidepool/memserver.toml:3", "TIDEPOOL_POOL", "--pool"
  std::string origin = {};
  std::string fallback = {};  // the default
  bool is_live = false;       // a reload may change it
};
struct QuotaConfigRow {
  std::string match = {}, origin = {};
  std::string guarantee = {}, limit = {}, nvme_limit = {};  // as written; empty: not given
  uint32_t weight = 1;
  Priority priority = Priority::kNormal;
};
struct ConfigRows {
  std::string file = {};  // empty: none
  std::vector<ConfigRow> settings = {};
  std::vector<QuotaConfigRow> quotas = {};
};

// A GPU whose memory ranks bring, present from the first such rank on.
struct GpuRow {
  std::string name;   // "cuda:0"
  std::string model;  // "NVIDIA H200"
  std::string uuid;   // "GPU-6c3e..."
  std::string form;   // how its memory is exported: "vmm" or "ipc"
  std::string note;   // reason for the form
  // The GPU's memory; free: when it was opened, 0 if unknown.
  uint64_t bytes = 0, bytes_free = 0;
  // Bytes of it that this server's context takes; 0: unknown.
  uint64_t bytes_taken = 0;
  uint64_t state_bytes = 0;                   // taken by states of jobs
  uint64_t pool_bytes = 0, pinned_bytes = 0;  // host pool; registered with the GPU
  double pin_seconds = 0;
  std::string pin_failure;  // empty: none
  std::string failure;      // why it is no longer used; empty: it works
  uint32_t sessions = 0;
  uint64_t bytes_h2d = 0, bytes_d2h = 0;
  uint64_t copies_unpinned = 0;  // of unregistered host memory: slow
};

struct Snapshot {
  int64_t uptime_ns = 0;
  bool ready = false, draining = false;
  uint64_t pool_bytes = 0, pool_used = 0;      // host pool
  uint64_t pool_frozen = 0;                    // of pool_used: frozen chunks, each once
  uint64_t frozen_chunks = 0;                  // each once
  uint64_t pool_huge_bytes = 0;                // of the pool in 2 MiB pages, at the start
  double pool_touch_seconds = 0;               // time to make its pages present; 0: none needed
  uint64_t rcache_limit = 0, rcache_used = 0;  // memory of host-device rCaches
  NvmeRow nvme;
  std::vector<GpuRow> gpus;  // in opening order
  uint32_t workers = 0;
  uint32_t prefetch = 0;  // prefetch distance of the update, in elements
  uint64_t turns = 0;
  uint64_t long_turns = 0;                // of more than 5 ms
  int64_t longest_turn_ns = 0;            // the longest of these
  uint64_t bytes_h2d = 0, bytes_d2h = 0;  // since start
  uint64_t parameters_updated = 0;
  uint64_t sessions_ended_badly = 0;
  std::vector<JobRow> jobs;
  std::vector<LostJob> lost;        // jobs whose states had to be given up
  std::vector<WaitingRow> waiting;  // in serving order
  std::vector<SetAsideRow> set_aside;
  std::vector<AccountRow> accounts;
  std::vector<MuteRow> mutes;
  std::shared_ptr<const ConfigRows> config;  // null if none was given
};

}  // namespace tidepool::memserver
