// Continuing a job: when a run goes on with what the server holds, and what its user is told when
// it cannot, or ended before its time.
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
// going on with them must be somebody's wish.
// Errors: kUsageError (an unknown word; auto without a name that the next process would know).
Result<bool> ResumeWanted(const RunOptions& options, const RankPlace& place);

// The refusal of a run that would have to overwrite the weights of `job`, or to go on with them
// unasked.
Status StillHeld(const std::string& job, Version sealed);

// True when `ended` is the end of an attempt, not of a run that may be resumed: another rank has
// died, or, after a restart of the server, this one asked for a version that the others had left
// behind. The next attempt goes on behind the last sealed step. `in_training`: this rank has a
// seat, and steps to do; an answer that does not come is then the doing of another rank that stands
// still.
bool EndsAttemptOnly(const Status& ended, bool in_training = false);

// Of a run that a signal has stopped, for its last line. `kept`: memserver keeps `job`, "kept until
// 13:05" (KeptRun::Until); empty: it does not.
std::string WhatIsLeft(const RunOptions& options, const std::string& job, const std::string& kept);

// True when `ended` says that memserver had to give up states which it could not read: such a job
// is gone.
bool LosesStates(const Status& ended);
// That error as what it means for a run with sealed steps, kStatesLost.
Status AsLoss(const Status& ended, const std::string& job, bool resume);

// `ended` with advice on how `job`, which lies with a shared server, is continued or begun anew.
// `kept` as above; empty: nobody knows.
Status ExplainEnd(Status ended, const std::string& job, bool resume, const std::string& kept = "");
// The same for a run with a private server, whose states end with it: kServerGone becomes
// kStatesLost. `log_tail`: what that server logged last; may be empty.
Status ExplainPrivateEnd(Status ended, const std::string& log_tail);

}  // namespace tidepool::trainer
