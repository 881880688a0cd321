// Judging a complete step, and sealing it. From the seal on, the server alone can finish the step.
//
// The serve loop's thread. JudgeStep is a pure function of the norm sums and the step's numbers, so
// that it gives the same bits in whatever order the gradients came. SealStep is the commit: the
// record first, then one 64-bit store.
#pragma once

#include "memserver/residency/job_states.h"
#include "shm/messages.h"

namespace tidepool::memserver {

// The record for the open step. `end` carries rank 0's cursor and random state. gradient_scale is
// clip factor / loss scale: micro-batches are summed, not averaged (a trainer that wants the mean
// divides its loss).
StepRecord JudgeStep(const JobStates& states, const shm::EndStepRequest& end, bool all_finite);
// Seals the step. Requires record.version == sealed_version + 1 and every chunk complete. All
// chunks are due for their update afterwards. `said`: the ranks' data on groups and parameters.
void SealStep(JobStates* states, const StepRecord& record, const StepSaid& said = {});

// Makes a job without weights start after the step of a checkpoint: sets all but the weights
// and the moments, which follow. Idempotent, even on a later server. Requires that no weights came.
void BeginAtStep(JobStates* states, const shm::BeginAtRequest& request);

}  // namespace tidepool::memserver
