// Continuing a job: when a run goes on with what the server holds, and what its user reads when it
// cannot, or ended before its time.
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

// --resume; where it is not given: auto for ranks that torchrun has started again, else never.
// Never is the default because the weights of a job that is still held are another run's result:
// the user must ask to go on with them. Where a checkpoint is named, as where nothing is. Errors:
// kUsageError (auto without a name that the next process would know).
Result<bool> ResumeWanted(const JobOptions& job, const ServerOptions& server,
                          const RankPlace& place);

// The refusal of a run that would have to overwrite the weights of `job`, or to go on with them
// unasked.
Status StillHeld(const std::string& job, Version sealed);
// The refusal of ranks that a launcher has started again behind the end of their job, which would
// begin anew.
Status StartedAgainInVain(const std::string& job);

// True when `ended` is the end of an attempt, not of a run that may be resumed: another rank has
// died, or, after a restart of the server, this rank asked for a version older than the others'
// steps. The next attempt goes on behind the last sealed step. `in_training`: this rank has a slot,
// and steps to do; a missing answer then comes from another rank that stands still.
bool EndsAttemptOnly(const Status& ended, bool in_training = false);

// The last line of a run that a signal has stopped. `kept`: memserver keeps `job`, "kept until
// 13:05" (KeptRun::Until); empty: it does not.
std::string WhatIsLeft(const RunOptions& options, const std::string& job, const std::string& kept);

// True when `ended` says that memserver gave up states that it could not read: the job is gone.
bool LosesStates(const Status& ended);
// That error for a run with sealed steps: kStatesLost.
Status AsLoss(const Status& ended, const std::string& job, bool resume);

// `ended` with advice on how to continue or restart `job`, which lies with a shared server. `kept`
// as above; empty: nobody knows.
Status ExplainEnd(Status ended, const std::string& job, bool resume, const std::string& kept = "");
// The same for a run with a private server, whose states end with it: kServerGone becomes
// kStatesLost. `log_tail`: what that server logged last; may be empty.
Status ExplainPrivateEnd(Status ended, const std::string& log_tail);

}  // namespace tidepool::trainer
