// CheckRun: the one validation of what a run is given, before anything is contacted, made or
// started. `run`, `run --dry-run` and `launch` go through it; `estimate`, which needs no data and
// writes nothing, and calls its part CheckPlan, and OpenRunCorpus where --data is given. Numbers
// are checked before, flag by flag (number_flags.h).
//
// Any thread; torch-free. Files are read, nothing is written.
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

// How long a run waits, and how large its private server is.
struct RunWaits {
  std::optional<uint64_t> pool_bytes;  // as asked for
  int64_t server_timeout_ns = 0, rejoin_timeout_ns = 0, queue_timeout_ns = 0;
  // For a rank of the run before to leave its slot: as long as other ranks are waited for. Where
  // the server is the run's own, this.
  int64_t slot_timeout_ns = 60 * kNsPerSecond;
};
// What a rank is told whose slot stays taken so long: the flag that bounds the wait, too.
Status SeatStaysTaken(const Status& taken, int64_t waited_ns, bool standalone);
// Errors: kConfigBadValue (names the flag).
Result<RunWaits> WaitsOf(const JobOptions& job, const ServerOptions& server);

// Checks what the plan of a run depends on: the name of the job, the waits, the model, its layout
// and its base. Errors: kUsageError, those of WaitsOf and MakeRunPlan.
Result<RunPlan> CheckPlan(const RunOptions& options, const RankPlace& place,
                          const std::string& job);

// What was found valid.
struct CheckedRun {
  RunPlan plan;
  RunCorpus data;
};
// Checks all but what only LibTorch or a device can tell: --rcache auto is settled before. Errors:
// those of CheckPlan, OpenRunCorpus and CheckOutputs.
Result<CheckedRun> CheckRun(const RunOptions& options, const RankPlace& place,
                            const std::string& job);

// Checks a command that starts the run elsewhere, with `world` ranks on this machine. What needs
// --rcache auto is left to the ranks.
Status CheckLaunch(const RunOptions& options, uint32_t world);

}  // namespace tidepool::trainer
