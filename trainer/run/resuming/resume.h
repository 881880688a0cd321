// Resuming a job: when a run continues with the server's states, and the messages for the user when
// it cannot, or when it ended early.
//
// Any thread; pure functions, torch-free.
#pragma once

#include <string>

#include "base/ids.h"
#include "base/status.h"
#include "trainer/launch/rank_place.h"
#include "trainer/run/run_options.h"

namespace tidepool::trainer {

// The job's name: --job, else the launcher's, else made of preset (or "lora") and process id.
std::string JobNameOf(const RunOptions& options, const RankPlace& place);

// --resume; if not given: auto for ranks that torchrun has restarted, else never. Never is the
// default because the weights of a held job are another run's result: the user must ask to continue
// them. A named checkpoint counts as not given. Errors: kUsageError (auto without a name that the
// next process would know).
Result<bool> ResumeWanted(const JobOptions& job, const ServerOptions& server,
                          const RankPlace& place);

// The refusal of a run that would overwrite the weights of `job`, or continue them unasked.
Status StillHeld(const std::string& job, Version sealed);
// The refusal of ranks that a launcher has restarted after their job ended: they would begin from
// scratch.
Status StartedAgainInVain(const std::string& job);

// True when `ended` ends an attempt, not a run that may be resumed: another rank has died, or,
// after a restart of the server, this rank asked for a version older than the others' steps. The
// next attempt continues after the last sealed step. `in_training`: this rank has a slot, and steps
// to do; a missing answer then means that another rank is stuck.
bool EndsAttemptOnly(const Status& ended, bool in_training = false);

// The last line of a run stopped by a signal. `kept`: memserver keeps `job`, "kept until 13:05"
// (KeptRun::Until); empty: it does not.
std::string WhatIsLeft(const RunOptions& options, const std::string& job, const std::string& kept);

// True when `ended` says that memserver dropped states that it could not read: the job is gone.
bool LosesStates(const Status& ended);
// That error for a run with sealed steps, as kStatesLost.
Status AsLoss(const Status& ended, const std::string& job, bool resume);

// `ended` with advice on how to continue or restart `job`, held by a shared server. `kept` as
// above; empty: unknown.
Status ExplainEnd(Status ended, const std::string& job, bool resume, const std::string& kept = "");
// The same for a run with a private server, whose states end with it: kServerGone becomes
// kStatesLost. `log_tail`: that server's last log lines; may be empty.
Status ExplainPrivateEnd(Status ended, const std::string& log_tail);

}  // namespace tidepool::trainer
