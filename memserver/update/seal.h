// Judging a complete step, and sealing it: the moment from which the server alone can finish it.
//
// The serve loop's thread. JudgeStep is a pure function of the norm sums and the step's numbers, so
// that it gives the same bits whatever order the gradients came in. SealStep is the commit: record
// first, then one 64-bit store.
#pragma once

#include "memserver/residency/job_states.h"
#include "shm/messages.h"

namespace tidepool::memserver {

// The record that the open step would get. `end` carries rank 0's cursor and random state.
// gradient_scale is clip factor / loss scale: micro-batches are summed, not averaged (a trainer
// that wants the mean divides its loss).
StepRecord JudgeStep(const JobStates& states, const shm::EndStepRequest& end, bool all_finite);
// Requires record.version == sealed_version + 1 and every chunk complete. All chunks wait for their
// update afterwards. `said`: what the ranks say of groups and parameters.
void SealStep(JobStates* states, const StepRecord& record, const StepSaid& said = {});

// A job without weights goes on behind the step of a checkpoint: all of it but the weights and the
// moments, which follow. May be said again, also by a later server. Requires that no weights came.
void BeginAtStep(JobStates* states, const shm::BeginAtRequest& request);

}  // namespace tidepool::memserver
