// Checkpoints of a ModuleJob: saves its states, and puts saved states into a new job.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "trainer/checkpoint/loaded_checkpoint.h"
#include "trainer/module/module_job.h"

namespace tidepool::trainer {
namespace {

constexpr uint32_t kPlanesWithoutScales = 2;

// Copies the files of a directory into the checkpoint; does nothing if `from` is empty.
Status CopyFiles(const std::string& from, const std::string& to) {
  std::error_code error;
  if (!from.empty()) std::filesystem::copy(from, to, error);
  return error ? Status(ErrorId::kSaveFailed, "cannot be copied: " + error.message()).Where(from)
               : Status();
}

}  // namespace

Status ModuleJob::BeginAt(const client::BeginPoint& point) {
  if (!put_) return NotNow("begin_at", "a new job begins behind a step before its first put");
  client::ChunkService* const service = session_->service();
  TP_ASSIGN_OR_RETURN(const client::Ticket begun, service->StartBeginAt(point));
  TP_RETURN_IF_ERROR(service->Wait(begun).status());
  begun_at_ = point.version;
  return {};
}

ModuleMoments ModuleJob::MomentsOf(uint32_t index) const {
  ModuleMoments moments;
  if (!plan_ || index >= parameters_.size() || IsFrozen(index)) return moments;
  const client::JobSpec& spec = plan_->spec;
  moments.form = spec.StatesOf(plan_->layout.parameters[plan_->layout.of_note[index]].chunk);
  for (const uint32_t plane : MomentPlanesOf(spec)) {
    if (plane <= kPlanesWithoutScales || moments.form == StateForm::kSplit8)
      moments.planes.push_back(plane);
  }
  return moments;
}

Status ModuleJob::PutMoment(uint32_t index, uint32_t plane, const at::Tensor& words) {
  if (!put_ || begun_at_ == 0)
    return NotNow("put_moment", "moments are put behind begin_at, before their parameter");
  const std::vector<uint32_t> planes = MomentsOf(index).planes;
  if (std::find(planes.begin(), planes.end(), plane) == planes.end())
    return Status(ErrorId::kUsageError, "the parameter has no such moment");
  const ModuleParameter& parameter = parameters_[index];
  if (!words.is_cpu() || !words.is_contiguous() || words.numel() != parameter.tensor.numel() ||
      words.scalar_type() != at::kFloat)
    return BadParameter(parameter.name, "is not given a word of 32 bits an element");
  return put_->PutMoment(plan_->layout.of_note[index], plane, words.const_data_ptr<float>());
}

Status ModuleJob::BeginCheckpoint(const CheckpointOptions& options, const std::string& program,
                                  const std::string& files) {
  if (steps_ == nullptr) return NotNow("save", "bind the job first");
  if (checkpoints_) TP_RETURN_IF_ERROR(FinishCheckpoint());
  checkpoint_options_ = options;

  checkpoints_ = std::make_unique<RunCheckpoints>(RunCheckpoints::Parts{
      .options = checkpoint_options_,
      .spec = plan_->spec,
      .clock = clock_,
      .describe = [files](const std::string& directory) { return CopyFiles(files, directory); },
      .say = [](const std::string&) {},
      .program = program});
  return checkpoints_->Begin(steps_->version(), session_->service());
}

Status ModuleJob::FinishCheckpoint() {
  if (!checkpoints_) return {};
  Status finished = checkpoints_->Finish(session_->service());
  checkpoints_.reset();
  return finished;
}

}  // namespace tidepool::trainer
