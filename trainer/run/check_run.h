// CheckRun: the single validation of a run's options, before anything is contacted, created or
// started. `run`, `run --dry-run` and `launch` call it; `estimate`, which needs no data and writes
// nothing, calls CheckPlan, and OpenRunCorpus if --data is given. Numbers are checked earlier, flag
// by flag (number_flags.h).
//
// Any thread; torch-free. Reads files, writes nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "trainer/launch/rank_place.h"
#include "trainer/inputs/run_corpus.h"
#include "trainer/run/run_options.h"
#include "trainer/run/run_plan.h"

namespace tidepool::trainer {

// How long a run waits, and the size of its private server's pool.
struct RunWaits {
  std::optional<uint64_t> pool_bytes;  // as requested
  int64_t server_timeout_ns = 0, rejoin_timeout_ns = 0, queue_timeout_ns = 0;
  // Wait for a rank of the previous run to leave its slot: as long as the wait for other ranks;
  // with a private server, this default.
  int64_t slot_timeout_ns = 60 * kNsPerSecond;
};
// The error of a rank whose slot stayed taken that long; names the flag that bounds the wait.
Status SeatStaysTaken(const Status& taken, int64_t waited_ns, bool standalone);
// Errors: kConfigBadValue (names the flag).
Result<RunWaits> WaitsOf(const JobOptions& job, const ServerOptions& server);

// Checks what a run's plan depends on: the job's name, the waits, the model, its layout and its
// base. Errors: kUsageError, those of WaitsOf and MakeRunPlan.
Result<RunPlan> CheckPlan(const RunOptions& options, const RankPlace& place,
                          const std::string& job);

// The results of a successful check.
struct CheckedRun {
  RunPlan plan;
  RunCorpus data;
};
// Checks everything that needs neither LibTorch nor a device; --rcache auto must be settled first.
// Errors: those of CheckPlan, OpenRunCorpus and CheckOutputs.
Result<CheckedRun> CheckRun(const RunOptions& options, const RankPlace& place,
                            const std::string& job);

// Checks a command that starts `world` ranks on this machine in other processes. The ranks check
// what depends on --rcache auto.
Status CheckLaunch(const RunOptions& options, uint32_t world);

}  // namespace tidepool::trainer
