// SpawnRanks: starts all ranks of a run on this machine and stays until they have ended; for use
// without torchrun.
//
// Call on the main thread of a program that does nothing else: it takes over SIGINT, SIGTERM,
// SIGHUP and SIGCHLD meanwhile.
//  - Each rank gets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, TIDEPOOL_LAUNCH_ID (by which
//    the ranks find each other, and the default name of the job), TIDEPOOL_LAUNCH_DONE
//    (done_marks.h), TIDEPOOL_LAUNCH_ROLL (rank_roll.h), neither MASTER_ADDR nor MASTER_PORT, and
//    none of torchrun's own variables. Its stdin is /dev/null.
//  - Rank 0 writes directly to our stdout and stderr, so that its progress line works on a
//    terminal; the lines of the others pass through us, prefixed with "[rank r] ".
//  - SIGINT, SIGTERM and SIGHUP are forwarded to every rank. When a rank fails the others get
//    SIGTERM, and SIGKILL after the grace period.
//  - With restarts, a rank that crashed or was killed is restarted with the same environment, and
//    the others are left alone: they wait for it. Not restarted are a rank that reports why it
//    cannot go on (any exit code of ours but 1), and one that was killed after all its work was
//    done: it counts as a success. The roll says which ranks are on their way and which have ended
//    for good, so that no rank waits for one that will not come.
//  - Ranks die with this process, however it ends.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace tidepool::trainer {

// What to start, and how many restarts.
struct SpawnOptions {
  uint32_t ranks = 1;
  std::string program;                  // a path, or a name in PATH
  std::vector<std::string> arguments;   // equal for every rank
  int64_t grace_ns = 5 * kNsPerSecond;  // between SIGTERM and SIGKILL
  uint32_t max_restarts = 0;            // total over all ranks
};

// Returns the exit code of the run: 0 if every rank ended with 0, else that of the first rank that
// did not (128 + signal for a killed one). Errors: kFileUnreadable (the program cannot be started),
// kUsageError (no ranks), kInternal (the system refused a process or descriptor).
Result<int> SpawnRanks(const SpawnOptions& options, const Clock* clock);

}  // namespace tidepool::trainer
