// The part of StepDesk about chunks whose states lie on GPUs (decision 026).
#include "memserver/loop/step_desk.h"

namespace tidepool::memserver {

bool StepDesk::TendGpuStates() {
  bool worked = false, any = false;
  for (const auto& job : tables_->jobs) {
    if (!job->states->uses_gpus()) continue;
    any = true;
    worked |= job->gpus.Progress(kCopyBytesPerTurn);
    worked |= TakeStoredAndUpdated(job.get());
  }
  if (!any || tables_->handing_over) return worked;
  const auto share = [this](size_t i) -> Share& { return tables_->jobs[i]->gpu_share; };
  const auto take = [this](size_t i) -> uint64_t {
    Job& job = *tables_->jobs[i];
    const bool may = job.states->uses_gpus() && job.phase == JobPhase::kOpen && !job.suspended;
    return may ? job.updates.BeginOnGpu() : 0;
  };
  for (uint32_t left = kGpuUnitsPerTurn; left > 0 && gpus_.Serve(tables_->jobs.size(), share, take);
       --left)
    worked = true;
  return worked;
}

}  // namespace tidepool::memserver
