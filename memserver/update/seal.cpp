#include "memserver/update/seal.h"

#include "base/check.h"
#include "base/planted.h"
#include "base/point.h"
#include "optim/gradient_norm.h"

namespace tidepool::memserver {

StepRecord JudgeStep(const JobStates& states, const shm::EndStepRequest& end, bool all_finite) {
  StepRecord record{};
  record.version = states.sealed_version() + 1;
  record.skipped = all_finite ? 0 : 1;
  record.optimizer_step = states.last_step().optimizer_step + (all_finite ? 1 : 0);
  record.learning_rate = end.learning_rate;
  record.loss_scale = end.loss_scale;
  record.scaler_steps = end.scaler_steps;
  record.data_cursor = end.data_cursor;
  record.random_state = end.random_state;

  const double scale = end.loss_scale;
  record.grad_norm = optim::CombineNorm(states.norm_sums()) / scale;
  const double clip =
      all_finite ? optim::ClipFactor(record.grad_norm, states.spec().max_grad_norm) : 0;
  record.gradient_scale = static_cast<float>(clip / scale);
  return record;
}

void SealStep(JobStates* states, const StepRecord& record, const StepSaid& said) {
  TP_CHECK(record.version == states->sealed_version() + 1, "steps are sealed one after the other");
  if (TP_PLANTED("update.sealed_before_record"))
    states->record().sealed_version.store(record.version, std::memory_order_release);
  TP_POINT("server.step_sealing");

  const bool late = TP_PLANTED("update.sealed_before_slot");
  if (!late) states->records().slots().Write(record, said);
  StepRecord& kept = states->record().steps[record.version % 2];
  kept = record;
  kept.crc = CrcOf(kept);
  TP_POINT("server.step_recorded");
  states->record().sealed_version.store(record.version, std::memory_order_release);

  if (late) {
    TP_POINT("server.sealed_before_slot");
    states->records().slots().Write(record, said);
  }
  states->table().ForgetOpenStep();
  TP_POINT("server.step_sealed");
}

// The record of version 0, which was sealed before, uses the slot of even versions. An odd version
// comes first, so that one record is whole at each moment.
void BeginAtStep(JobStates* states, const shm::BeginAtRequest& request) {
  JobRecord& job = states->record();
  if (states->sealed_version() == request.version) return;  // said before
  StepRecord record{};
  record.loss_scale = request.loss_scale;
  record.optimizer_step = request.optimizer_step;
  record.scaler_steps = request.scaler_steps;
  record.data_cursor = request.data_cursor;
  record.random_state = request.random_state;

  for (const Version version : {request.version | 1, request.version}) {
    record.version = version;
    StepRecord& kept = job.steps[version % 2];
    kept = record;
    kept.crc = CrcOf(kept);
    TP_POINT("server.begin_recorded");
    job.sealed_version.store(version, std::memory_order_release);
  }
  states->records().OpenNextStep();
}

}  // namespace tidepool::memserver
