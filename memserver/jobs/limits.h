// Limits of the daemon that nobody sets, each with its unit and the reason for its size. Those that
// a user may set are memserver/residency/settings.h.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/units.h"

namespace tidepool::memserver {

// Units of states on GPUs (shm/spec/gpu_states.h) that a turn puts on streams at most: each is some
// ten calls of the driver, a few microseconds each.
inline constexpr uint32_t kGpuUnitsPerTurn = 4;

// A turn does a bounded amount of everything, so one that takes longer waited for somebody: a call
// of a driver, or a CPU.
inline constexpr int64_t kLongTurnNs = 5'000'000;

// Requests taken from one session in a turn, before the next session has its turn (fairness; a
// request costs well below 1 us).
inline constexpr uint32_t kRequestsPerTurn = 64;
// Bytes copied for one session in a turn where the loop copies itself: about 100 us of memcpy.
inline constexpr uint64_t kCopyBytesPerTurn = 1 * kMiB;
// While several jobs have ranks: bytes of copies in flight, of all ranks together, beyond which
// none is begun. What waits for it waits in the order of the jobs' shares, but for jobs that have
// none in flight. Enough for several copy threads; less where the loop copies, which does one after
// the other.
inline constexpr uint64_t kSharedCopyBytes = 256 * kMiB;
inline constexpr uint64_t kSharedCopyBytesInLoop = 8 * kMiB;
// What a request costs beside its bytes, in bytes that could be copied meanwhile: so that many
// small ones are no more than few large ones.
inline constexpr uint64_t kRequestCost = 16 * kKiB;
// Control events taken in a turn; each may build or remove a job.
inline constexpr uint32_t kControlEventsPerTurn = 16;
// Chunks of a skipped step published in a turn (they change no bytes).
inline constexpr uint32_t kSkippedChunksPerTurn = 256;
// Chunks that a turn puts into the snapshot that is being built: about 200 us.
inline constexpr uint32_t kSnapshotChunksPerTurn = 4096;
// For so long behind its last request or work the workers are those of a job with the priority
// `high`, and each gives others so much (or an item) in such a time: a piece of theirs, once begun,
// keeps a worker for a millisecond, and beside it copies are slower. A pause of the trainer is
// longer than the first.
inline constexpr int64_t kHeldForHighNs = 20 * kNsPerMs;
inline constexpr uint64_t kBytesBesideHigh = 4 * kMiB;
inline constexpr int64_t kBesideHighNs = 50 * kNsPerMs;
// So long behind the last request of a higher priority, work gives way to its trainers
// (SCHED_IDLE).
inline constexpr int64_t kGivesWayNs = kNsPerSecond;
// Idle time that the loop spins before it sleeps. A sleeping wake-up costs 70 us between two cores;
// where cores are few, spinning takes them from the trainers.
inline constexpr int64_t kSpinNsManyCores = 100'000;
inline constexpr int64_t kSpinNsFewCores = 20'000;
inline constexpr uint32_t kFewCores = 4;
// Behind a longer silence the loop answers and sleeps again at once: the next request is likely to
// be as far away. Longer than a wake-up, or requests that come one behind the other would each find
// it asleep.
inline constexpr int64_t kLongSilenceNs = 200'000;
// For the choice of the copy kernel when the server starts, and the part of the pool in which it is
// measured: beyond it the choice is the same.
inline constexpr int64_t kTuneCopiesNs = 40 * kNsPerMs;
inline constexpr uint64_t kTuneCopiesBytes = 256 * kMiB;
// Threads that copy one large range together, on machines with many cores; more than this many no
// longer make the memory faster.
inline constexpr uint32_t kCopyThreadsMax = 4;
// Nice values, where the system lets a thread have them. The loop goes first: it sleeps when it has
// nothing to do, and everybody waits for it. Whoever floods a socket gets what is left: the threads
// that listen come last. Workers and copies are as important as the trainers.
inline constexpr int kLoopNice = -10;
inline constexpr int kListenNice = 10;
// Longest sleep: bounds how late a lease is found to have ended when nothing else happens.
inline constexpr int64_t kSleepNsMax = kNsPerSecond;
// Likewise, while the system has no room to watch the doorbell of a session.
inline constexpr int64_t kSleepNsUnwatched = kNsPerMs;
// Likewise, while a request waits for a flag of its trainer, or a copy is on a GPU's stream: what
// either costs at most beside its time. The system adds its timer slack of about as much.
inline constexpr int64_t kGpuPollNs = 50'000;
// Ranks of the server before this one are waited for at least so long, also where the lease of dead
// ranks is shorter: they live.
inline constexpr int64_t kAwaitNsMin = 10 * kNsPerSecond;
// And at most so long, however long the lease: their own patience with a server that is away
// (`--server-timeout`) is over then. The job is kept all the same, and its name is free for ranks
// that are started again.
inline constexpr int64_t kAwaitNsMax = 120 * kNsPerSecond;
// A killed server whose copies on GPUs may be under way is waited for so long by all, at the start
// of the next one; its process ends within milliseconds, and within seconds where it has terabytes
// mapped. Behind that the jobs that it copied for wait alone.
inline constexpr int64_t kFormerWaitNs = 3 * kNsPerSecond;
// Between two looks at the keeper meanwhile.
inline constexpr int64_t kFormerLookNs = 100 * kNsPerMs;
// States that neither the drive nor the pool takes are tried again so often: a read, an update of
// one piece and four writes.
inline constexpr int64_t kPutOffNs = kNsPerSecond;
// A job whose states a drive did not take is not moved again for so long: who needs its room is
// answered instead.
inline constexpr int64_t kDemotionPauseNs = 60 * kNsPerSecond;
// One line a session and minute for requests that break the protocol, however many come.
inline constexpr int64_t kViolationLogNs = 60 * kNsPerSecond;

}  // namespace tidepool::memserver
