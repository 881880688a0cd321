// Limits of the daemon that cannot be configured, each with its unit and the reason for its size.
// Configurable limits are in memserver/residency/settings.h.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/units.h"

namespace tidepool::memserver {

// Units of states on GPUs (shm/spec/gpu_states.h) that a turn puts on streams at most: each takes
// about ten driver calls of a few microseconds.
inline constexpr uint32_t kGpuUnitsPerTurn = 4;

// A turn does a bounded amount of work, so one that takes longer than this waited for a driver call
// or for a CPU.
inline constexpr int64_t kLongTurnNs = 5'000'000;

// Requests taken from one session in a turn before the next session is served (fairness; a request
// costs well below 1 us).
inline constexpr uint32_t kRequestsPerTurn = 64;
// Bytes copied for one session in a turn where the loop itself copies: about 100 us of memcpy.
inline constexpr uint64_t kCopyBytesPerTurn = 1 * kMiB;
// While several jobs have ranks, no copy begins beyond this many bytes in flight, except for jobs
// that have none in flight. Waiting copies begin in the order of the jobs' shares. Enough for
// several copy threads; less where the loop copies, one copy after the other.
inline constexpr uint64_t kSharedCopyBytes = 256 * kMiB;
inline constexpr uint64_t kSharedCopyBytesInLoop = 8 * kMiB;
// The fixed cost of a request, as the bytes that could be copied meanwhile, so that many small
// requests count as much as a few large ones.
inline constexpr uint64_t kRequestCost = 16 * kKiB;
// Control events taken in a turn; each may begin or remove a job.
inline constexpr uint32_t kControlEventsPerTurn = 16;
// Chunks of a skipped step published in a turn (they change no bytes).
inline constexpr uint32_t kSkippedChunksPerTurn = 256;
// Chunks that a turn adds to the snapshot being built: about 200 us.
inline constexpr uint32_t kSnapshotChunksPerTurn = 4096;
// Table rows that a turn makes for jobs being made (JobStates::LayOutMore): one per chunk, and one
// more for each of its shards. 2,048 chunks with one rank: about 1 ms.
inline constexpr uint32_t kTableRowsPerTurn = 4096;
// Table rows that a turn changes for a job whose states have gone to NVMe: about 1 ms.
inline constexpr uint32_t kMovedRowsPerTurn = 4096;
// Bytes of a job's first records that a turn writes: about 1 ms.
inline constexpr uint64_t kRecordBytesPerTurn = 512 * kKiB;
// A job of priority `high` has the workers to itself until this long after its last request or
// work. Meanwhile each worker gives other jobs one item, or kBytesBesideHigh, in each
// kBesideHighNs: an item of theirs keeps a worker for a millisecond, and slows down copies beside
// it. Pauses of a trainer are longer than kHeldForHighNs.
inline constexpr int64_t kHeldForHighNs = 20 * kNsPerMs;
inline constexpr uint64_t kBytesBesideHigh = 4 * kMiB;
inline constexpr int64_t kBesideHighNs = 50 * kNsPerMs;
// Until this long after the last request of a job of higher priority, work of lower ones runs in
// the background (SCHED_IDLE).
inline constexpr int64_t kGivesWayNs = kNsPerSecond;
// Idle time that the loop spins before it sleeps. A wake-up from sleep costs 70 us between two
// cores; where cores are few, spinning takes them from the trainers.
inline constexpr int64_t kSpinNsManyCores = 100'000;
inline constexpr int64_t kSpinNsFewCores = 20'000;
inline constexpr uint32_t kFewCores = 4;
// After a longer silence the loop answers and sleeps again at once: the next request is likely to
// be as far away. It is longer than a wake-up takes; otherwise a series of requests would find the
// loop asleep each time.
inline constexpr int64_t kLongSilenceNs = 200'000;
// Time that the choice of the copy kernel may take at the start, and bytes of the pool in which it
// is measured; a larger part gives the same choice.
inline constexpr int64_t kTuneCopiesNs = 40 * kNsPerMs;
inline constexpr uint64_t kTuneCopiesBytes = 256 * kMiB;
// Threads that copy one large range together, on machines with many cores; more threads do not
// increase the bandwidth.
inline constexpr uint32_t kCopyThreadsMax = 4;
// Nice values, where the system lets a thread have them. The loop comes first: it sleeps when it
// has nothing to do, and all others wait for it. The listening threads come last, so that a flood
// at a socket gets only the CPU time that is left. Workers and copies rank equal to the trainers.
inline constexpr int kLoopNice = -10;
inline constexpr int kListenNice = 10;
// Longest sleep: bounds how late the end of a lease is noticed when nothing else happens.
inline constexpr int64_t kSleepNsMax = kNsPerSecond;
// Longest sleep while the system has no room to watch the doorbell of a session.
inline constexpr int64_t kSleepNsUnwatched = kNsPerMs;
// Longest sleep while a request waits for a flag of its trainer, or a copy is on a GPU's stream:
// the most that either is delayed. The system adds about as much timer slack.
inline constexpr int64_t kGpuPollNs = 50'000;
// Ranks of the former server are awaited for at least this long, even where the lease of dead ranks
// is shorter: these ranks live.
inline constexpr int64_t kAwaitNsMin = 10 * kNsPerSecond;
// And at most this long, however long the lease: by then their own `--server-timeout` has passed.
// The job is kept all the same, and its name is free for ranks that are started again.
inline constexpr int64_t kAwaitNsMax = 120 * kNsPerSecond;
// How long the next server waits at its start for a killed one whose copies on GPUs may be under
// way. That process ends within milliseconds, or within seconds if it has terabytes mapped. After
// this time only the jobs that it copied for wait.
inline constexpr int64_t kFormerWaitNs = 3 * kNsPerSecond;
// Interval between two looks at the keeper meanwhile.
inline constexpr int64_t kFormerLookNs = 100 * kNsPerMs;
// Pause after which states that neither the drive nor the pool took are tried again; one try is a
// read, an update of one piece and four writes.
inline constexpr int64_t kPutOffNs = kNsPerSecond;
// A job whose demotion failed is not demoted again for this long; a rank that needs its room is
// refused meanwhile.
inline constexpr int64_t kDemotionPauseNs = 60 * kNsPerSecond;
// At most one log line per session and minute for requests that break the protocol, however many
// come.
inline constexpr int64_t kViolationLogNs = 60 * kNsPerSecond;

}  // namespace tidepool::memserver
